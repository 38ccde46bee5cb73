"""What codecs cost in accuracy and save in bytes: PerMFL on rotated digits, each codec on both links and both ways.

Run by hand: ``make prove-codecs``. Results go into ``docs/how-to/reliability.md``. Fails where int8 with error feedback ends
more than .005 from float32 in the accuracy of personal models, or takes more than .26 of its bytes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linked import KINDS, METHODS, PAGE, SEEDS, config_of, mean, number, signed, train
from pages import table, write

from palmette.runs import Result

NONE, FEEDBACK = "none", "int8"
CODECS = (
    NONE,
    "float16",
    "bfloat16",
    FEEDBACK,
    "int8 without feedback",
    "delta+int8",
    "delta+top 5%",
    "delta+top 1%+zstd",
    "float16+zstd",
)
LOWER = ("delta+top 5%", "delta+top 1%+zstd")  # also on the devices' link alone, with none above it
MODELS = {"mclr": "`mclr` 64-10, 650 numbers", "dnn": "`dnn` 64-100-10, 7,510 numbers"}
GAP, SHARE = 0.005, 0.26


@dataclass(frozen=True)
class Coded:
    """The runs with one codec.

    Attributes:
        codec: What the table calls it.
        runs: A run for each seed.
        seconds: Processor time of each.
    """

    codec: str
    runs: Sequence[Result]
    seconds: Sequence[float]

    def sent(self, way: str) -> int:
        """Return the bytes one way, on all links."""
        return sum(link[f"bytes_{way}"] for run in self.runs for link in run.links)


def coded(base: Path, codec: str, seeds: Sequence[int] = SEEDS, link: str = "all", **more: Any) -> Coded:
    """Run PerMFL with a codec on all links, or on one."""
    runs, seconds = [], []
    for seed in seeds:
        config = config_of(METHODS[0], seed, links={link: {"codec": codec}}, **more)
        name = "-".join(word for word in f"{codec} {link}".replace("%", "").replace("+", " ").split())
        began = time.process_time()
        runs.append(train(base / f"{name}-{seed}", config))
        seconds.append(time.process_time() - began)
    return Coded(f"`{codec}`" + ("" if link == "all" else f" on the {link}' link only"), runs, seconds)


def row(one: Coded, plain: Coded) -> list[str]:
    """Return a line of the table."""
    if one is plain:
        return [one.codec, *(number(mean(one.runs, kind)) for kind in KINDS), "1", "1", "1"]
    gaps = [signed(mean(one.runs, kind) - mean(plain.runs, kind)) for kind in KINDS]
    sent = [f"{one.sent(way) / plain.sent(way):.3f}".removeprefix("0") for way in ("up", "down")]
    slower = statistics.median(a / b for a, b in zip(one.seconds, plain.seconds, strict=True))
    return [one.codec, *gaps, *sent, f"{slower:.1f}"]


def holds(one: Coded, plain: Coded) -> bool:
    """Whether a codec changes the accuracy of personal models little and saves what it should."""
    gap = abs(mean(one.runs, "PM") - mean(plain.runs, "PM"))
    return gap <= GAP and all(one.sent(way) <= SHARE * plain.sent(way) for way in ("up", "down"))


def main(base: Path) -> int:
    """Run, print and write."""
    lines = [
        f"PerMFL on rotated digits as in the storm, no faults, mean of {len(SEEDS)} seeds. The first line has the accuracies "
        "without a codec, the others how far theirs lie from it; bytes and seconds (of the processor, for the whole run) are "
        "shares of the first line's.",
    ]
    good = True
    for model, told in MODELS.items():
        found = [coded(base / model, codec, model={"name": model}) for codec in CODECS]
        found += [coded(base / model, codec, model={"name": model}, link="devices") for codec in LOWER]
        rows = [row(one, found[0]) for one in found]
        print("\n".join(" | ".join(cells) for cells in rows), flush=True)
        lines += ["", *table([told, *KINDS, "bytes up", "bytes down", "seconds"], rows)]
        good &= holds(found[CODECS.index(FEEDBACK)], found[0])
    bound = f"within {GAP} of none's PM accuracy at no more than {SHARE} of the bytes"
    lines += ["", f"`{FEEDBACK}`, which has error feedback, {'is' if good else 'is NOT'} {bound}."]
    write(PAGE, "codecs", "codecs", lines)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
