"""Exercises 8.1 and 8.2: judged by files written byte by byte here, and by the safetensors library."""

import json

import torch
from safetensors.torch import save

from chapters.ch08_weights import tensor_file
from chapters.judge import exercise, expect, expect_equal, expect_parts, expect_raises


def file_of(header: str | bytes, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return len(text).to_bytes(8, "little") + text + data


# 8.1 parse_header


@exercise("8.1")
def test_a_small_header():
    text = '{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    try:
        got = tensor_file.parse_header(file_of(text, b"\0\0\0\0"))
    except tensor_file.WeightsError as error:
        expect(
            False,
            because=f"a sound file was refused ({error}). Is the length little-endian, the smallest byte first? "
            "And is the header what stands from byte 8 to byte 8 + length?",
        )
    expect_parts(got, ("header", "start"), because="two results: the header, and where the data begins")
    header, start = got
    expect(not isinstance(header, int), because="the header comes first, and then where the data begins")
    expect_equal(header, json.loads(text), because="the header is the JSON between byte 8 and byte 8 + length")
    expect_equal(
        start,
        8 + len(text),
        because="the data begins behind the header: the header's length plus the eight bytes that held it",
    )


@exercise("8.1")
def test_a_header_longer_than_255_bytes():
    tensors = {f"layer.{i}": torch.ones(2) for i in range(20)}
    data = save(tensors, metadata={"format": "pt"})
    try:
        header, start = tensor_file.parse_header(data)
    except tensor_file.WeightsError as error:
        expect(False, because=f"all eight bytes are the length, not only the first of them ({error})")
    expect("__metadata__" in header, because="the header is returned whole, __metadata__ too: check_layout skips it")
    expect_equal(
        sorted(header),
        sorted(["__metadata__", *tensors]),
        because="all names that the library wrote must be in the header",
    )
    expect_equal(start + 20 * 8, len(data), because="all eight bytes are the length, not only the first of them")


@exercise("8.1")
def test_names_in_any_script():
    header, start = tensor_file.parse_header(file_of('{"größe": {}}'))
    expect_equal(list(header), ["größe"], because="the length counts bytes, and the header is UTF-8")
    expect_equal(
        start,
        8 + len('{"größe": {}}'.encode()),
        because="where the data begins is counted in bytes, and ö and ß take two each: 8 + length, not the characters",
    )


@exercise("8.1")
def test_a_file_without_tensors():
    try:
        header, start = tensor_file.parse_header(file_of("{}", b"and then the data"))
    except tensor_file.WeightsError as error:
        expect(False, because=f"an empty object is a sound header, the docstring's own example ({error})")
    expect_equal((header, start), ({}, 10), because="an empty object is a sound header: {} and 10")


@exercise("8.1")
def test_all_eight_bytes_count():
    with expect_raises(
        tensor_file.WeightsError,
        because="this length is 2**40 + 2: read all eight bytes, not only the first few",
    ):
        tensor_file.parse_header((2**40 + 2).to_bytes(8, "little") + b"{}")
    with expect_raises(
        tensor_file.WeightsError,
        because="a length has no sign: 2**64 - 10 is monstrous, and with signed=True it becomes -10",
    ):
        tensor_file.parse_header((2**64 - 10).to_bytes(8, "little") + b"{}ab")


@exercise("8.1")
def test_a_file_that_ends_too_early():
    cut = (5).to_bytes(8, "little") + b"{}"
    for data in (b"", b"\x05\0\0", file_of("{}")[:9], cut, (10**15).to_bytes(8, "little") + b"{}"):
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
        because="a header of more than LONGEST_HEADER bytes is refused, however long the file is: eight bytes of "
        "rubbish must not make us read gigabytes",
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
def test_other_encodings():
    with expect_raises(
        tensor_file.WeightsError,
        because='json.loads guesses the encoding of bytes, and takes UTF-16, too; decode("utf-8") says which one it is',
    ):
        tensor_file.parse_header(file_of("{}".encode("utf-16")))
    with expect_raises(
        tensor_file.WeightsError,
        because='bytes that aren\'t UTF-8 must be refused; errors="ignore" drops them, and then names are other names',
    ):
        tensor_file.parse_header(file_of(b'{"\xff": 1}'))


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
        because="a name that stands there twice must be refused, and json.loads by itself keeps the last: "
        "object_pairs_hook=unique_names",
    ):
        tensor_file.parse_header(file_of('{"w": 1, "w": 2}'))


# 8.2 tensor_view

FLOATS = bytes([0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64])  # 1, 2, 3, 4


@exercise("8.2")
def test_offsets_count_from_the_data():
    data = bytearray(b"\x07" * 24 + FLOATS)
    got = tensor_file.tensor_view(data, 24, tensor_file.Entry("F32", (2,), 4, 12))
    first_of_all = torch.is_tensor(got) and got.flatten()[:1].tolist() == [1.0]
    expect_equal(
        got,
        torch.tensor([2.0, 3.0]),
        because="that is where the data begins, and this tensor begins four bytes further on: add entry.begin"
        if first_of_all
        else "an entry's offsets count from where the data begins, not from the file's first byte: add data_start",
    )


@exercise("8.2")
def test_the_shape():
    data = bytearray(8) + bytearray(FLOATS)
    got = tensor_file.tensor_view(data, 8, tensor_file.Entry("F32", (2, 2), 0, 16))
    expect_equal(
        got, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), because="the flat tensor needs the entry's shape, row by row"
    )


@exercise("8.2")
def test_what_lies_behind_it():
    data = bytearray(8) + bytearray(FLOATS) + b"\x07"  # a byte of the next tensor
    try:
        got = tensor_file.tensor_view(data, 8, tensor_file.Entry("F32", (2,), 0, 8))
    except (ValueError, RuntimeError) as error:
        expect(
            False,
            because="the rest of the file needn't be a whole number of this tensor's elements: tell frombuffer the "
            f"count ({error})",
        )
    expect_equal(got, torch.tensor([1.0, 2.0]), because="the tensor ends where its entry says: count elements")


@exercise("8.2")
def test_nothing_is_copied():
    for name, dtype in tensor_file.DTYPES.items():
        data = bytearray(8 + 2 * dtype.itemsize)
        view = tensor_file.tensor_view(data, 8, tensor_file.Entry(name, (2,), 0, 2 * dtype.itemsize))
        expect_equal(view.dtype, dtype, because=f"{name} is {dtype}: look it up in DTYPES")
        data[8] = 1
        expect_equal(
            view.view(torch.uint8)[0].item(),
            1,
            because=f"when the bytes of the file change, the tensor ({name}) must change: it is a view. A copy (clone, "
            "torch.tensor, bytes(...)) needs the memory twice",
        )


@exercise("8.2")
def test_every_dtype_of_the_library():
    for name in ("F16", "BF16", "F64", "I8", "I16", "I32", "I64"):
        dtype = tensor_file.DTYPES[name]
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
        empty = tensor_file.tensor_view(data, 8, tensor_file.Entry("I64", (0, 3), 16, 16))
    except (ValueError, RuntimeError) as error:
        expect(False, because=f"a tensor without elements is allowed, and frombuffer refuses a count of 0: {error}")
    expect_equal(tuple(empty.shape), (0, 3), because="a tensor without elements keeps its shape")
    expect_equal(empty.dtype, torch.int64, because="a tensor without elements has a dtype, too: give it to torch.empty")
