"""What ``compare``, ``sweep``, ``show`` and ``resume`` have in common: running a study, printing it, writing its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from palmette.cli.configure import say_code
from palmette.cli.failures import FAILED, Stopped, print_json
from palmette.errors import PalmetteError
from palmette.guards.terminal import say
from palmette.report.picture import check_file, check_picture
from palmette.runs import Interrupted
from palmette.runs.folder import claimed
from palmette.studies.conduct import conduct, go_on
from palmette.studies.plan import Arm, Plan, read_plan
from palmette.studies.study import Study
from palmette.values import whole


@dataclass(frozen=True)
class Outputs:
    """The files that a study is written to besides its folder."""

    csv: Path | None = None
    latex: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None

    def check(self) -> None:
        """Refuse a file that cannot be written, before anything is run."""
        for option, file in (("--csv", self.csv), ("--latex", self.latex), ("--markdown", self.markdown)):
            if file is not None:
                check_file(option, file)
        if self.plot is not None:
            check_picture("--plot", self.plot)

    def write(self, study: Study) -> None:
        """Write them, and say where."""
        from palmette.report import sheets

        summary = study.summary()
        made = sheets.sheets(summary)
        texts = {self.csv: sheets.as_csv(summary), self.latex: sheets.latex(made), self.markdown: sheets.markdown(made)}
        for file, text in texts.items():
            if file is not None:
                try:
                    file.write_text(text, encoding="utf-8")
                except OSError as error:
                    raise PalmetteError(
                        f"cannot write {file}: {error.strerror}; the study is kept in {study.folder}"
                    ) from None
                say(f"wrote {file}")
        drawn = summary["points"] if study.points else summary["methods"]
        if self.plot is not None and not any(one["models"] for one in drawn):
            say(f"{self.plot} was not drawn: no run came to its end")
        elif self.plot is not None:
            from palmette.report.study_plots import plot_study

            plot_study(summary, self.plot)
            say(f"wrote {self.plot}")


def seeds_of(seeds: int | None, arms: Sequence[Arm]) -> tuple[int, ...] | None:
    """Return the seeds that were asked for, beginning with the one that was set; ``None`` to leave it to the study."""
    first = next((arm.config.seed for arm in arms if not arm.runs), 0)
    if seeds is None:
        return None if first == 0 else (first, first + 1, first + 2)
    return tuple(range(first, first + whole("--seeds", seeds, 1, 1000)))


def conducted(
    plan: Plan,
    out: Path | None,
    stem: str,
    outputs: Outputs,
    *,
    jobs: int | None,
    json: bool,
    quiet: bool,
    track: Sequence[str] = (),
) -> None:
    """Run a study, print what came out, and leave with the exit code that fits."""
    with claimed(out, Path("runs"), stem) as folder:
        try:
            study = conduct(plan, folder, jobs=jobs, shown=not quiet, track=track)
        except (Interrupted, KeyboardInterrupt) as error:
            raise _stopped(error, folder) from error
    presented(study, outputs, json=json)


def continued(folder: Path, *, json: bool, quiet: bool, track: Sequence[str] = ()) -> None:
    """Go on with a study, and print what came out."""
    say_code(folder, *(arm.config for arm in read_plan(folder).arms if not arm.runs))
    try:
        study = go_on(folder, shown=not quiet, track=track)
    except (Interrupted, KeyboardInterrupt) as error:
        raise _stopped(error, folder) from error
    presented(study, Outputs(), json=json)


def presented(study: Study, outputs: Outputs, *, json: bool) -> None:
    """Print a study and write its files; the exit code is 1 where a run diverged or failed."""
    show_study(study, json=json)
    outputs.write(study)
    if json:
        print_json({**study.summary(), "study": str(study.folder)})
    if study.lost:
        lost = "; ".join(f"{run} {one['end']}" for run, one in sorted(study.lost.items()))
        say(f"not all runs came to their end: {lost}")
        raise typer.Exit(FAILED)


def show_study(study: Study, *, json: bool) -> None:
    """Print a study as tables; with JSON, nothing here."""
    if json:
        return
    if study.plan.kind == "demo":
        from palmette.cli.demo import show_demo

        show_demo(study)
        return
    from palmette.guards.screen import Screen
    from palmette.report.study_tables import study_report

    screen = Screen()
    screen.print(study_report(study.summary(), str(study.folder), width=screen.width))


def _stopped(error: BaseException, folder: Path) -> Stopped:
    how = str(error) if isinstance(error, Interrupted) else "stopped at once"
    return Stopped(f"{how}; nothing that was finished is lost, go on with: palmette resume {folder}")
