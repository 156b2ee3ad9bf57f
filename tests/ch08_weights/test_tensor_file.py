"""Exercises 8.1 and 8.2: judged by files written byte by byte here, and by the safetensors library."""

import json

import torch
from safetensors.torch import save

from chapters.ch08_weights import tensor_file
from chapters.judge import exercise, expect, expect_equal, expect_raises


def file_of(header: str | bytes, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return len(text).to_bytes(8, "little") + text + data


# 8.1 parse_header


@exercise("8.1")
def test_a_small_header():
    text = '{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    try:
        header, start = tensor_file.parse_header(file_of(text, b"\0\0\0\0"))
    except tensor_file.WeightsError as error:
        expect(
            False,
            because=f"a sound file was refused ({error}). Is the length little-endian, the smallest byte first? "
            "And is the header what stands from byte 8 to byte 8 + length?",
        )
    expect_equal(header, json.loads(text), because="the header is the JSON between byte 8 and byte 8 + length")
    expect_equal(
        start,
        8 + len(text),
        because="the data begins behind the header: the header's length plus the eight bytes that held it",
    )


@exercise("8.1")
def test_a_header_longer_than_255_bytes():
    tensors = {f"layer.{i}": torch.ones(2) for i in range(20)}
    data = save(tensors)
    try:
        header, start = tensor_file.parse_header(data)
    except tensor_file.WeightsError as error:
        expect(False, because=f"all eight bytes are the length, not only the first of them ({error})")
    expect_equal(sorted(header), sorted(tensors), because="all names that the library wrote must be in the header")
    expect_equal(start + 20 * 8, len(data), because="all eight bytes are the length, not only the first of them")


@exercise("8.1")
def test_names_in_any_script():
    header, _ = tensor_file.parse_header(file_of('{"größe": {}}'))
    expect_equal(list(header), ["größe"], because="the length counts bytes, and the header is UTF-8")


@exercise("8.1")
def test_a_file_that_ends_too_early():
    for data in (b"", b"\x05\0\0", file_of("{}")[:9], (10**15).to_bytes(8, "little") + b"{}"):
        with expect_raises(
            tensor_file.WeightsError,
            because="a file that ends before its header does must be refused: compare 8 + length with len(data) first",
        ):
            tensor_file.parse_header(data)


@exercise("8.1")
def test_a_monstrous_length():
    class Endless(bytes):
        def __len__(self) -> int:
            return 10**18

    data = Endless((tensor_file.LONGEST_HEADER + 1).to_bytes(8, "little") + b"{}")
    with expect_raises(
        tensor_file.WeightsError,
        match=str(tensor_file.LONGEST_HEADER + 1),
        because="a header of more than LONGEST_HEADER bytes is refused, and the message says how long it claims to be: "
        "eight bytes of rubbish must not make us read gigabytes",
    ):
        tensor_file.parse_header(data)


@exercise("8.1")
def test_rubbish():
    for text in ("{", "", "nonsense", b"\xff\xfe", "[" * 100_000):
        with expect_raises(
            tensor_file.WeightsError,
            because="what isn't JSON in UTF-8 must end in WeightsError: json.loads raises ValueError, and for 100,000 "
            "brackets RecursionError; bytes that aren't UTF-8 raise a ValueError, too",
        ):
            tensor_file.parse_header(file_of(text))


@exercise("8.1")
def test_not_an_object():
    for text in ("[]", "3", "null", '"w"'):
        with expect_raises(
            tensor_file.WeightsError, because="JSON that isn't an object has no tensors; refuse it before anybody looks"
        ):
            tensor_file.parse_header(file_of(text))


@exercise("8.1")
def test_a_name_twice():
    with expect_raises(
        tensor_file.WeightsError,
        match="twice",
        because="a name that stands there twice must be refused, and json.loads by itself keeps the last: "
        "object_pairs_hook=unique_names",
    ):
        tensor_file.parse_header(file_of('{"w": 1, "w": 2}'))


# 8.2 tensor_view

FLOATS = bytes([0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64])  # 1, 2, 3, 4


@exercise("8.2")
def test_offsets_count_from_the_data():
    data = bytearray(b"\x07" * 24 + FLOATS)
    entry = tensor_file.Entry("F32", (2,), 4, 12)
    expect_equal(
        tensor_file.tensor_view(data, 24, entry).tolist(),
        [2.0, 3.0],
        because="an entry's offsets count from where the data begins, not from the file's first byte: add data_start",
    )


@exercise("8.2")
def test_the_shape():
    data = bytearray(8) + bytearray(FLOATS)
    got = tensor_file.tensor_view(data, 8, tensor_file.Entry("F32", (2, 2), 0, 16))
    expect_equal(got.tolist(), [[1.0, 2.0], [3.0, 4.0]], because="the flat tensor needs the entry's shape, row by row")


@exercise("8.2")
def test_nothing_is_copied():
    data = bytearray(8) + bytearray(FLOATS)
    view = tensor_file.tensor_view(data, 8, tensor_file.Entry("F32", (4,), 0, 16))
    data[8:12] = FLOATS[12:]
    expect_equal(
        view[0].item(),
        4.0,
        because="when the bytes of the file change, the tensor must change: it is a view. A copy (clone, torch.tensor, "
        "bytes(...)) needs the memory twice",
    )


@exercise("8.2")
def test_every_dtype_of_the_library():
    for name, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16), ("F64", torch.float64), ("I8", torch.int8)):
        want = torch.tensor([1, -2, 3]).to(dtype)
        data = save({"w": want})
        start = 8 + int.from_bytes(data[:8], "little")
        entry = tensor_file.Entry(name, (3,), 0, 3 * dtype.itemsize)
        got = tensor_file.tensor_view(bytearray(data), start, entry)
        expect_equal(got.dtype, dtype, because=f"{name} is {dtype}: look it up in DTYPES")
        expect_equal(got.double().tolist(), [1, -2, 3], because=f"the library wrote these three numbers as {name}")


@exercise("8.2")
def test_empty_and_single():
    data = bytearray(8) + bytearray(FLOATS)
    scalar = tensor_file.tensor_view(data, 8, tensor_file.Entry("F32", (), 8, 12))
    expect_equal((tuple(scalar.shape), scalar.item()), ((), 3.0), because="shape [] is a single number")
    try:
        empty = tensor_file.tensor_view(data, 8, tensor_file.Entry("F32", (0, 3), 16, 16))
    except (ValueError, RuntimeError) as error:
        expect(False, because=f"a tensor without elements is allowed, and frombuffer refuses a count of 0: {error}")
    expect_equal(tuple(empty.shape), (0, 3), because="a tensor without elements keeps its shape")
