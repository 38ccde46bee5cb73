"""Codecs: both ends agree bit for bit, bytes are counted exactly, and what was left out is not lost."""

from __future__ import annotations

import math
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from palmette.errors import BadInput, WireError
from palmette.links.codecs import Codec

SIZES = [40, 5, 0, 12]
WIDTH = sum(SIZES)
NUMBERS = ["float32", "float16", "bfloat16", "int8", "int8 without feedback"]
TEXTS = [
    "none",
    *NUMBERS,
    *(f"delta+{numbers}" for numbers in NUMBERS[:-1]),
    *(f"mask+{numbers}" for numbers in NUMBERS),
    "mask",
    "delta",
    "delta+mask",
    "delta+mask+int8",
    "top 1%",
    "top 5%",
    "top 30%",
    "top 100%",
    "top 10%+int8",
    "top 40%+float16",
    "zstd",
    "int8+zstd",
    "bfloat16+zstd",
    "mask+zstd",
    "delta+top 5%+zstd",
    "delta+mask+int8+zstd",
]
CODECS = {text: Codec.parse(text) for text in TEXTS}
each = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def some(count: int, seed: int = 0, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> Tensor:
    """Rows of numbers of many sizes, half of them zero."""
    luck = torch.Generator().manual_seed(seed)
    rows = torch.randn((count, width), generator=luck, dtype=torch.float64)
    rows *= 10 ** torch.randint(-3, 3, (count, width), generator=luck)
    return (rows * (torch.rand((count, width), generator=luck) < 0.5)).to(dtype)


def start(codec: Codec, rows: Tensor) -> dict[str, Tensor]:
    return {name: row.expand(rows.shape).clone() for name, row in codec.keeps(rows.new_empty(rows.shape[1:])).items()}


def bits(rows: Tensor) -> bytes:
    return bytes(rows.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def agree(codec: Codec, messages: list[Tensor], sizes: list[int]) -> Tensor:
    """Send messages one after the other and check that both ends have the same; return what arrived last."""
    kept, theirs = start(codec, messages[0]), start(codec, messages[0])
    for rows in messages:
        before = rows.clone()
        sent = codec.encode(rows, sizes, kept)
        blobs = sent.blobs()
        assert bits(rows) == bits(before)
        assert sent.rows.dtype == rows.dtype
        assert sent.rows.shape == rows.shape
        assert sent.lengths.dtype == torch.int64
        assert sent.lengths.tolist() == [len(blob) for blob in blobs]
        got, theirs = codec.decode(blobs, rows.new_empty(rows.shape[1:]), sizes, theirs)
        assert got.shape == rows.shape
        assert bits(got) == bits(sent.rows)
        assert sent.kept.keys() == kept.keys()
        assert theirs.keys() == sent.kept.keys() - {"residual"}
        assert all(bits(theirs[name]) == bits(sent.kept[name]) for name in theirs)
        kept = sent.kept
    return got


# -- both ends ---------------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_decoded_is_bit_for_bit_what_the_sender_was_told(codec: Codec, dtype: torch.dtype) -> None:
    agree(codec, [some(4, seed, dtype) for seed in range(4)], SIZES)


@each
def test_rows_of_any_shape_are_sent(codec: Codec) -> None:
    for shape in ((0, 7), (3, 0), (3, 1), (3, 2, 4), (2,), (1, 9)):
        width = math.prod(shape[1:])
        agree(codec, [some(shape[0], seed, width=width).reshape(shape) for seed in range(2)], [width])


@each
def test_zeros_of_both_signs_are_sent(codec: Codec) -> None:
    agree(codec, [torch.zeros(2, WIDTH), -torch.zeros(2, WIDTH), some(2)], SIZES)


@each
def test_rows_that_share_memory_or_are_strided_are_sent_as_they_are_seen(codec: Codec) -> None:
    agree(codec, [some(1).expand(3, -1), some(3, width=2 * WIDTH)[:, ::2], some(WIDTH, width=3).T], SIZES)


@each
def test_a_row_alone_gives_the_bits_it_gives_in_a_stack(codec: Codec) -> None:
    stack = some(6)
    stack[1, 3], stack[2], stack[3, 50], stack[4] = math.nan, 0.0, math.inf, 1e-44
    kept = start(codec, stack)
    for rows in (stack, some(6, 1)):
        together = codec.encode(rows, SIZES, kept)
        for i, blob in enumerate(together.blobs()):
            alone = codec.encode(rows[i : i + 1], SIZES, {name: value[i : i + 1] for name, value in kept.items()})
            assert alone.blobs() == [blob]
            assert bits(alone.rows) == bits(together.rows[i])
            assert all(bits(alone.kept[name]) == bits(together.kept[name][i]) for name in kept)
        kept = together.kept


def test_several_threads_may_encode_at_once() -> None:
    codec = CODECS["delta+mask+int8+zstd"]
    rows = some(20, width=3000)
    expected = codec.encode(rows, [3000], start(codec, rows)).blobs()

    def work(_: int) -> list[bytes]:
        sent = codec.encode(rows, [3000], start(codec, rows))
        codec.decode(sent.blobs(), rows[0], [3000], start(codec, rows))
        return sent.blobs()

    with ThreadPoolExecutor(4) as pool:
        assert all(blobs == expected for blobs in pool.map(work, range(8)))


# -- what is not finite ------------------------------------------------------------------------------------------------


@each
def test_what_is_not_finite_arrives_so_and_spoils_no_other_row(codec: Codec) -> None:
    clean = some(3)
    expected = codec.encode(clean, SIZES, start(codec, clean))
    for bad in (math.nan, math.inf, -math.inf):
        rows = clean.clone()
        rows[1, 42] = bad
        sent = codec.encode(rows, SIZES, start(codec, rows))
        assert not bool(sent.rows[1].isfinite().all())
        assert bits(sent.rows[[0, 2]]) == bits(expected.rows[[0, 2]])
        agree(codec, [rows, clean], SIZES)


def test_int8_sends_the_tensor_that_is_not_finite_as_nan_and_leaves_nothing_for_later() -> None:
    codec, rows = Codec.parse("int8"), some(1)
    rows[0, 42] = math.inf
    sent = codec.encode(rows, SIZES, start(codec, rows))
    assert sent.rows[0, 40:45].isnan().all()
    assert bool(sent.rows[0, :40].isfinite().all() and sent.rows[0, 45:].isfinite().all())
    assert sent.kept["residual"][0, 40:45].tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("text", "largest", "beyond"),
    [("float16", 65504.0, 70000.0), ("bfloat16", 3.3895313892515355e38, 3.4e38), ("float32", 3.4e38, 1e39)],
)
def test_a_number_too_large_for_its_format_becomes_infinite_and_is_not_cut_silently(
    text: str, largest: float, beyond: float
) -> None:
    sent = Codec.parse(text).encode(torch.tensor([[largest, beyond, -beyond]], dtype=torch.float64), [3], {}).rows[0]
    assert sent[0] == pytest.approx(largest)
    assert sent[1:].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-37, 1.5e-36, 1e37, 3.4e38])
def test_int8_takes_numbers_at_both_ends_of_the_scale(size: float, dtype: torch.dtype) -> None:
    codec = Codec.parse("int8")
    rows = torch.tensor([[size, -size / 2, 0.0]], dtype=dtype)
    sent = agree(codec, [rows], [3])
    assert not bool(sent.isnan().any())
    assert float((sent - rows).abs().max()) <= max(size / 127, 1.5e-36)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_int8_leaves_numbers_too_small_to_divide_by_for_later(dtype: torch.dtype) -> None:
    codec, rows = Codec.parse("int8"), torch.tensor([[1e-44, -1e-40, 1e-37], [1e-44, 1.0, 2.0]], dtype=dtype)
    sent = codec.encode(rows, [3], start(codec, rows))
    assert sent.rows[0].tolist() == [0.0] * 3
    assert bits(sent.kept["residual"][0]) == bits(rows[0])
    assert float(sent.rows[1, 2]) == pytest.approx(2.0)


def test_int8_never_keeps_what_is_not_finite() -> None:
    codec, most = Codec.parse("int8"), torch.finfo(torch.float32).max
    for part in (1.0, 0.9999999, 0.999999):
        rows = torch.tensor([[most * part, 1e30, 0.0]])
        sent = codec.encode(rows, [3], start(codec, rows))
        assert bool(sent.rows.isnan().all()) or bool(sent.rows.isfinite().all())
        assert bool(sent.kept["residual"].isfinite().all())


def test_numbers_of_float64_beyond_float32_are_nan_with_int8_and_kept_with_none() -> None:
    rows = torch.tensor([[1e300, 1.0]], dtype=torch.float64)
    assert agree(Codec.parse("int8"), [rows], [2]).isnan().all()
    assert torch.equal(agree(Codec(), [rows], [2]), rows)


# -- exactness and bytes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["none", "float32", "mask", "zstd", "mask+zstd"])
def test_exact_codecs_change_no_number(text: str) -> None:
    rows = some(4)
    assert torch.equal(agree(CODECS.get(text, Codec.parse(text)), [rows], SIZES), rows)


def test_a_mask_leaves_zeros_out() -> None:
    rows = torch.tensor([[1.0, 0, -0.0, 0, 0, 0, 0, 0, 2.0], [0] * 9])
    sent = Codec.parse("mask").encode(rows, [9], {})
    assert sent.lengths.tolist() == [2 + 8, 2]
    assert not bool(sent.rows.signbit().any())
    assert Codec.parse("mask+int8").encode(rows, [9], start(Codec.parse("int8"), rows)).lengths.tolist() == [8, 6]


@pytest.mark.parametrize("sizes", [[7840, 10], [78400, 100, 1000, 10]], ids=["mclr", "dnn"])
@pytest.mark.parametrize("text", ["int8", "delta+int8"])
def test_int8_takes_little_more_than_a_quarter_of_float32(text: str, sizes: list[int]) -> None:
    codec, rows = Codec.parse(text), some(2, width=sum(sizes))
    lengths = codec.encode(rows, sizes, start(codec, rows)).lengths
    assert float(lengths.max()) <= 0.2504 * 4 * sum(sizes)


def test_int8_rounds_half_to_even_with_a_scale_for_each_tensor() -> None:
    rows = torch.tensor([[127.0, 0.5, 1.5, -2.5, 0.0, 0.127, -0.0635]])
    sent = Codec.parse("int8 without feedback").encode(rows, [5, 2], {})
    assert sent.rows[0, :5].tolist() == [127.0, 0.0, 2.0, -2.0, 0.0]
    assert sent.rows[0, 5:].tolist() == pytest.approx([0.127, -0.064], abs=1e-6)
    assert sent.lengths.tolist() == [7 + 2 * 4]


@pytest.mark.parametrize("share", [0.01, 1, 5, 12.5, 50, 100])
@pytest.mark.parametrize("width", [1, 8, 1000, 70_000])
def test_top_sends_the_largest_entries_as_positions_or_mask_whichever_is_shorter(share: float, width: int) -> None:
    codec = Codec(top=share)
    rows = some(2, width=width) + 1e-9
    sent = codec.encode(rows, [width], start(codec, rows))
    count = max(1, round(width * share / 100))
    order = rows.abs().sort(dim=1, descending=True, stable=True).indices[:, :count]
    expected = torch.zeros_like(rows).scatter(1, order, rows.gather(1, order))
    assert torch.equal(sent.rows, expected)
    bits_each = max(1, (width - 1).bit_length())
    places = min(math.ceil(width / 8), math.ceil(count * bits_each / 8))
    assert sent.lengths.tolist() == [1 + places + 4 * count] * 2


def test_top_takes_the_first_of_equal_entries_and_at_least_one() -> None:
    codec = Codec.parse("top 40%")
    rows = torch.tensor([[1.0, -2.0, 2.0, -2.0, 0.5], [0.0] * 5, [3.0, -3.0, 3.0, 1.0, 1.0]])
    sent = agree(codec, [rows], [5])
    assert sent.tolist() == [[0.0, -2.0, 2.0, 0.0, 0.0], [0.0] * 5, [3.0, -3.0, 0.0, 0.0, 0.0]]
    assert int(agree(Codec.parse("top 1%"), [rows], [5]).count_nonzero()) == 2


def test_top_sends_some_of_many_entries_that_are_not_finite_and_leaves_the_rest_alone() -> None:
    codec = Codec.parse("top 20%")
    rows = torch.tensor([[1.0, math.nan, -math.inf, math.nan, math.inf, -1.0, 5.0, -0.0, -7.0, 0.0]])
    first = agree(codec, [rows], [10])
    assert first.isnan().tolist() == [[False, True, *[False] * 8]]
    assert first[0, 2] == -math.inf
    assert first[0, 3:].tolist() == [0.0] * 7
    agree(codec, [-torch.zeros(1, 10), rows, -rows], [10])


def test_zstd_never_makes_bytes_more_than_one_more() -> None:
    rows = some(3, width=5000)
    noise = torch.randint(0, 256, (3, 20000), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    codec = Codec.parse("zstd")
    assert codec.encode(noise.view(torch.float32), [5000], {}).lengths.tolist() == [20001] * 3
    assert int(codec.encode(rows, [5000], {}).lengths.max()) < 20000
    assert codec.encode(torch.zeros(1, 5000), [5000], {}).lengths.item() < 50


# -- what is kept ------------------------------------------------------------------------------------------------------


def mean_error(text: str, messages: int) -> float:
    """Return how far the mean of many messages that were sent is from the mean of what was to be sent."""
    codec, truth = Codec.parse(text), some(1, width=200) + 0.013
    kept, total = start(codec, truth), torch.zeros_like(truth, dtype=torch.float64)
    for _ in range(messages):
        sent = codec.encode(truth, [200], kept)
        kept, total = sent.kept, total + sent.rows
    return float((total / messages - truth).abs().max())


def test_with_feedback_the_mean_of_messages_goes_to_the_mean_and_without_it_does_not() -> None:
    without = mean_error("int8 without feedback", 10)
    assert mean_error("int8 without feedback", 1000) == pytest.approx(without, rel=0.01)
    assert mean_error("int8", 10) < without / 4
    assert mean_error("int8", 1000) < without / 400


@pytest.mark.parametrize("text", ["delta+int8", "delta+mask+int8", "top 20%", "top 20%+int8", "delta+float16"])
def test_with_differences_the_error_of_a_converging_sequence_goes_to_zero(text: str) -> None:
    goal, step = some(2), some(2, 1)
    messages = [goal + step * 0.5**t for t in range(60)]
    assert float((agree(Codec.parse(text), messages, SIZES) - goal).abs().max()) < 1e-4
    single = agree(Codec.parse(text), messages[:1], SIZES)
    assert float((single - messages[0]).abs().max()) > 1e-3


def test_only_differences_and_feedback_keep_anything() -> None:
    row = torch.ones(3, dtype=torch.float64)
    kept = {text: sorted(codec.keeps(row)) for text, codec in CODECS.items()}
    assert kept["delta+int8"] == kept["delta+top 5%+zstd"] == kept["delta"] == ["reference"]
    assert kept["int8"] == kept["int8+zstd"] == kept["mask+int8"] == ["residual"]
    assert kept["none"] == kept["float16"] == kept["mask"] == kept["int8 without feedback"] == []
    assert all(
        value.tolist() == [0.0] * 3 and value.dtype == torch.float64
        for value in Codec.parse("int8").keeps(row).values()
    )


# -- as a user writes it -----------------------------------------------------------------------------------------------


@each
def test_a_codec_is_read_back_from_its_own_text(codec: Codec) -> None:
    assert Codec.parse(str(codec)) == codec
    assert Codec.parse(codec) is codec


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("plain", "none"),
        (" NONE ", "none"),
        ("top 1%", "delta+top 1%"),
        ("zstd + top 0.5 % + delta", "delta+top 0.5%+zstd"),
        ("top12.5%+bfloat16", "delta+top 12.5%+bfloat16"),
        ("int8+delta", "delta+int8"),
        ("delta+int8 without feedback", "delta+int8"),
        ("Int8  without feedback", "int8 without feedback"),
        ("top 0.0001%", "delta+top 0.0001%"),
        ("zstd+float16+mask", "mask+float16+zstd"),
    ],
)
def test_words_may_come_in_any_order(written: str, text: str) -> None:
    assert str(Codec.parse(written)) == text
    assert Codec.parse(text) == Codec.parse(written)


def test_only_none_is_plain() -> None:
    assert [text for text, codec in CODECS.items() if codec.plain] == ["none"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("int9", "did you mean 'int8'?"),
        ("flaot16", "did you mean 'float16'"),
        ("", "cannot read ''"),
        ("delta+", "cannot read ''"),
        ("none+int8", "'none' stands alone"),
        ("int8+float16", "'float16' comes after another word of its kind"),
        ("int8+int8", "'int8' comes after"),
        ("delta+delta", "'delta' comes after"),
        ("top 5%+mask", "leave out 'mask'"),
        ("top 0%", "from 0.0001 % to 100 %, not 0.0"),
        ("top 101%", "to 100 %, not 101.0"),
        ("top 5", "cannot read 'top 5'"),
        ("top -1%", "cannot read 'top -1%'"),
        ("top 1e-3%", "cannot read"),
        (8, "must be a text, not 8"),
        (None, "must be a text, not None"),
    ],
)
def test_what_is_no_codec_is_refused_with_what_there_is(written: object, told: str) -> None:
    with pytest.raises(BadInput, match="codec") as error:
        Codec.parse(written)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_of_an_unknown_format_are_refused() -> None:
    with pytest.raises(BadInput, match="there is own, float32"):
        Codec(numbers="int4")  # type: ignore[arg-type]


# -- bytes of a stranger -----------------------------------------------------------------------------------------------


def mutated(blob: bytes, luck: random.Random) -> bytes:
    data = bytearray(blob)
    for _ in range(luck.choice((0, 1, 1, 2, 5))):
        what, place = luck.randrange(5), luck.randrange(len(data) + 1)
        if what == 0:
            data[place:place] = luck.randbytes(luck.choice((1, 2, 9, 100)))
        elif what == 1:
            del data[place : place + luck.choice((1, 2, 8, 100))]
        elif what == 2 and place < len(data):
            data[place] = luck.choice((0, 1, 2, 127, 128, 255))
        elif what == 3 and place < len(data):
            data[place] ^= 1 << luck.randrange(8)
        else:
            data[: min(9, len(data))] = b"\1" + luck.choice((0, 1, 57, 2**31, 2**40, 2**63)).to_bytes(8, "little")
    return bytes(data)


@each
def test_bytes_that_cannot_be_a_row_are_refused_and_take_no_memory(codec: Codec) -> None:
    luck = random.Random(5)
    row = torch.zeros(4000)
    rows = some(1, width=4000)
    blob = codec.encode(rows, [4000], start(codec, rows)).blobs()[0]
    ends = set()
    tracemalloc.start()
    try:
        for _ in range(60):
            data = luck.choice((mutated(blob, luck), mutated(blob, luck), luck.randbytes(luck.randrange(60)), b""))
            try:
                got, _ = codec.decode([data], row, [4000], start(codec, rows))
                assert got.shape == (1, 4000)
                ends.add("read")
            except WireError:
                ends.add("refused")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert "refused" in ends


@pytest.mark.parametrize("text", ["mask", "top 1%", "top 50%", "zstd", "mask+zstd", "int8", "none"])
def test_a_few_bytes_for_a_billion_numbers_are_refused_at_once(text: str) -> None:
    row = torch.zeros(()).expand(1_000_000_000)
    tracemalloc.start()
    try:
        for blob in (b"", b"\0" * 200, b"\1" + (4_000_000_000).to_bytes(8, "little") + b"x" * 200, b"\1" * 200):
            with pytest.raises(WireError):
                Codec.parse(text).decode([blob], row, [1_000_000_000], {"reference": row[None]})
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claimed", [-1, 1])
def test_compressed_bytes_of_another_length_than_they_claim_are_refused(claimed: int) -> None:
    codec, rows = Codec.parse("mask+zstd"), some(1, width=3000)
    blob = codec.encode(rows, [3000], {}).blobs()[0]
    length = int.from_bytes(blob[1:9], "little")
    assert blob[:1] == b"\1"
    with pytest.raises(WireError, match="cannot be read"):
        codec.decode([b"\1" + (length + claimed).to_bytes(8, "little") + blob[9:]], rows[0], [3000], {})


@pytest.mark.parametrize(
    ("blob", "told"),
    [
        (b"\2" + bytes(9), "begins with b'\\x02'"),
        (b"\0\x21" + bytes(8), "must ascend"),
        (b"\0\x11" + bytes(8), "must ascend"),
        (b"\0\x0f" + bytes(8), "below its width of 10"),
        (b"\0\x01" + bytes(7), "has 9 bytes and not 10"),
    ],
)
def test_wrong_positions_are_refused(blob: bytes, told: str) -> None:
    with pytest.raises(WireError) as error:
        Codec.parse("top 20%").decode([blob], torch.zeros(10), [10], {"reference": torch.zeros(1, 10)})
    assert told in str(error.value)


def test_bits_after_the_last_position_are_refused() -> None:
    for blob in (b"\0\x31" + bytes(4), b"\0\x38" + bytes(4)):
        with pytest.raises(WireError, match="bits beyond its end"):
            Codec.parse("top 10%").decode([blob], torch.zeros(10), [10], {"reference": torch.zeros(1, 10)})


def test_a_mask_that_names_other_numbers_than_follow_is_refused() -> None:
    for blob, told in (
        (b"\xff\x80" + bytes(12), "names 9 entries, but 12 bytes"),
        (b"\x80\x7f" + bytes(4), "beyond the end"),
        (b"\x80", "has 1 bytes and not 2 to 38"),
    ):
        with pytest.raises(WireError) as error:
            Codec.parse("mask").decode([blob], torch.zeros(9), [9], {})
        assert told in str(error.value)


@each
def test_rows_of_another_width_than_the_model_are_refused(codec: Codec) -> None:
    rows = some(1)
    blob = codec.encode(rows, SIZES, start(codec, rows)).blobs()[0]
    for width in (WIDTH - 1, WIDTH + 1, 1, 0):
        with pytest.raises(WireError, match=f"of {width} numbers"):
            codec.decode([blob], torch.zeros(width), SIZES, start(codec, rows))
    with pytest.raises(WireError, match="tensors of the model have 1"):
        codec.encode(rows, [1], start(codec, rows))


@pytest.mark.parametrize("row", [torch.zeros(1), torch.zeros(WIDTH, dtype=torch.float64), torch.zeros(1, WIDTH)])
def test_a_difference_to_other_rows_is_refused(row: Tensor) -> None:
    codec, other = Codec.parse("delta"), row[None]
    blob = codec.encode(other, [row.numel()], start(codec, other)).blobs()[0]
    with pytest.raises(WireError, match="came for rows of 57 \\(float32\\)"):
        codec.decode([blob], row, [row.numel()], start(codec, some(1)))
