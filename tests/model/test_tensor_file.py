"""Safetensors files, sound and damaged, against the library: what it reads we read, and nothing else than an error."""

import contextlib
import json
import os
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file

from shared.model.tensor_file import DTYPES, TensorFile, WeightsError, write_tensors

SOUND = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "c": torch.tensor(7, dtype=torch.int64),
    "d": torch.zeros(0, 4),
}


def file_of(header, data=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(1,), begin=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def equal(ours, theirs):
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_as_the_library_writes_it(tmp_path, dtype):
    tensors = {"x": torch.tensor([[0, 1], [3, 1]]).to(dtype), "empty": torch.zeros(0, 3).to(dtype)}
    save_file(tensors, tmp_path / "w")
    file = TensorFile(tmp_path / "w")
    assert file.entries.keys() == tensors.keys()
    assert all(equal(file.tensor(name), tensors[name]) for name in tensors)


def test_the_library_reads_what_we_write(tmp_path):
    tensors = SOUND | {"e": torch.randn(3, 5).double(), "f": torch.tensor([True, False, True]), "t": SOUND["a"].t()}
    write_tensors(tmp_path / "w", tensors)
    theirs = load_file(tmp_path / "w")
    assert theirs.keys() == tensors.keys()
    assert all(equal(theirs[name], tensors[name].contiguous()) for name in tensors)
    assert all(equal(TensorFile(tmp_path / "w").tensor(name), theirs[name]) for name in tensors)


def test_writing_to_a_tensor_leaves_the_file_alone(tmp_path):
    write_tensors(tmp_path / "w", SOUND)
    before = (tmp_path / "w").read_bytes()
    TensorFile(tmp_path / "w").tensor("a").fill_(9)
    assert (tmp_path / "w").read_bytes() == before


def test_a_tensor_outlives_its_file(tmp_path):
    write_tensors(tmp_path / "w", SOUND)
    tensor = TensorFile(tmp_path / "w").tensor("a")
    (tmp_path / "w").unlink()
    assert equal(tensor, SOUND["a"])


def test_released_pages_are_read_again(tmp_path):
    big = torch.randn(100_000)
    write_tensors(tmp_path / "w", {"small": torch.ones(3), "x": big, "y": big + 1})
    file = TensorFile(tmp_path / "w")
    x, y = file.tensor("x"), file.tensor("y")
    assert float(x.sum()) == float(big.sum())
    file.release("x")
    assert torch.equal(x, big)
    assert torch.equal(y, big + 1)


REFUSED = {
    "no file": (None, "cannot be read: No such file"),
    "nothing in it": (b"", "empty file"),
    "seven bytes": (b"\2\0\0\0\0\0\0", "cut short"),
    "a header past the end": (struct.pack("<Q", 100) + b"{}", "should have 100 bytes, and the whole file has 10"),
    "an endless header": (struct.pack("<Q", 2**63) + b"{}", "should have 9223372036854775808 bytes"),
    "not JSON": (file_of(b"{nonsense"), "the header can't be read"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "the header can't be read"),
    "brackets without end": (file_of(b"[" * 200_000), "the header can't be read"),
    "a list": (file_of([]), "must be a JSON object, not a list"),
    "a name twice": (file_of(b'{"w": 1, "v": 2, "w": 3}'), "the name 'w' appears twice"),
    "a field twice": (file_of(b'{"w": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' appears twice"),
    "a number for a tensor": (file_of({"w": 3}), "tensor 'w' needs a dtype, a shape and two data_offsets"),
    "no shape": (file_of({"w": {"dtype": "F32", "data_offsets": [0, 4]}}, b"\0" * 4), "'w' needs a dtype, a shape"),
    "three offsets": (file_of({"w": entry() | {"data_offsets": [0, 4, 8]}}, b"\0" * 4), "'w' needs a dtype, a shape"),
    "a dtype that is a list": (file_of({"w": entry(["F32"])}, b"\0" * 4), "'w' has the dtype"),
    "outside": (file_of({"w": entry(end=4)}, b"\0" * 3), "ends at byte 4 of the data, which has 3"),
    "an overlap": (file_of({"v": entry(), "w": entry(begin=2, end=6)}, b"\0" * 6), "'w' lies on top of another"),
    "the same bytes": (file_of({"v": entry(), "w": entry()}, b"\0" * 4), "lies on top of another"),
    "a hole": (file_of({"v": entry(), "w": entry(begin=6, end=10)}, b"\0" * 10), "'w' leaves a hole before it"),
    "a hole at the start": (file_of({"w": entry(begin=4, end=8)}, b"\0" * 8), "'w' leaves a hole before it"),
    "more data": (file_of({"w": entry()}, b"\0" * 5), "end at byte 4 of the data, which has 5"),
    "the wrong size": (file_of({"w": entry(shape=(2,))}, b"\0" * 4), "'w' has 4 bytes, and F32 [2] takes 8"),
    "a negative size": (file_of({"w": entry(shape=(-1, -1))}, b"\0" * 4), "no such tensor"),
    "backwards": (file_of({"w": entry(begin=4, end=0)}, b"\0" * 4), "no such tensor"),
    "half a number": (file_of({"w": entry(shape=(1.0,))}, b"\0" * 4), "no such tensor"),
    "true": (file_of({"w": entry(shape=(True,))}, b"\0" * 4), "no such tensor"),
    "a size beyond 64 bits": (file_of({"w": entry(shape=(2**40, 2**40))}, b"\0" * 4), "no such tensor"),
    "a size that only zero makes small": (file_of({"w": entry(shape=(0, 2**64), end=0)}), "no such tensor"),
    "metadata that is a number": (file_of({"__metadata__": 5}), "__metadata__ must map names to texts"),
    "metadata that holds a number": (file_of({"__metadata__": {"a": 1}}), "__metadata__ must map names to texts"),
    "nested metadata": (file_of({"__metadata__": {"a": {"b": "c"}}}), "__metadata__ must map names to texts"),
    "half a character in metadata": (file_of(b'{"__metadata__": {"a": "\\ud800"}}'), "__metadata__ must map names"),
    "half a character for a name": (file_of({"\ud800": entry()}, b"\0" * 4), "half a character"),
    "not a number": (file_of({"w": entry() | {"x": float("nan")}}, b"\0" * 4), "has 4 fields"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_file_is_refused_with_its_name_and_the_reason(tmp_path, case):
    content, message = REFUSED[case]
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises((SafetensorError, OSError, ValueError)):
            load(content)  # the library agrees
    with pytest.raises(WeightsError) as caught:
        TensorFile(tmp_path / "model.safetensors")
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert message in str(caught.value)
    assert content is None or "Copy or fetch it again" in str(caught.value)


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 1), ("F8_E5M2", 1), ("U16", 2), ("C64", 8)])
def test_a_sound_file_of_another_dtype_is_not_called_damaged(tmp_path, dtype, size):
    content = file_of({"w": entry(dtype, end=size)}, b"\0" * size)
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(WeightsError, match=rf"w: tensor 'w' has the dtype '{dtype}', and only F64, .* can be read$"):
        TensorFile(tmp_path / "w")


def test_a_shape_that_torch_cannot_hold(tmp_path):
    """The library's format allows it, for it has no bytes; no tensor has such a shape."""
    for shape in ((0, 2**63), (0, 2**62, 4)):
        (tmp_path / "w").write_bytes(file_of({"w": entry(shape=shape, end=0)}))
        with pytest.raises(WeightsError, match="no such tensor"):
            TensorFile(tmp_path / "w")


def test_a_long_or_odd_name_is_shown_short_and_quoted(tmp_path):
    for name in ("w" * 10**6, "\x1b[2J\n" * 10):
        (tmp_path / "w").write_bytes(file_of({name: 3}))
        with pytest.raises(WeightsError) as caught:
            TensorFile(tmp_path / "w")
        assert len(str(caught.value)) < 400 + len(str(tmp_path))
        assert str(caught.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "w")
    with pytest.raises(WeightsError, match="w cannot be read: it isn't a regular file"):
        TensorFile(tmp_path / "w")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"__metadata__": torch.ones(1)}, "can't be called '__metadata__'"),
        ({"\ud800": torch.ones(1)}, "can't be called"),
        ({"z": torch.ones(1, dtype=torch.complex64)}, "tensor 'z' is torch.complex64"),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(tmp_path, tensors, message):
    with pytest.raises(WeightsError, match=message):
        write_tensors(tmp_path / "w", {"a": torch.ones(2)} | tensors)
    assert not (tmp_path / "w").exists()


def test_releasing_a_tensor_keeps_what_was_written_to_its_neighbours(tmp_path):
    write_tensors(tmp_path / "w", {"a": torch.zeros(10), "b": torch.arange(10_000.0), "c": torch.zeros(10)})
    file = TensorFile(tmp_path / "w")
    a, b, c = (file.tensor(name).add_(1) for name in "abc")
    file.release("b")
    assert torch.equal(a, torch.ones(10))
    assert torch.equal(c, torch.ones(10))
    assert float(b[5000]) == 5000  # the pages that are its own are the file's again


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(WeightsError, match="cannot be read"):
        TensorFile(tmp_path)


def read_all(path):
    file = TensorFile(path)
    return {name: file.tensor(name).clone() for name in file.entries}


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_damage_is_an_error_or_a_file_that_the_library_reads_too(tmp_path, data):
    """Bytes changed, cut off, or added, mostly in the header: never another error, and never other numbers."""
    content = bytearray(save(SOUND))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(("change", "cut", "insert", "digit")))
        if kind == "change":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[place : place + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        elif digits := [i for i, byte in enumerate(content) if chr(byte).isdigit()]:
            content[data.draw(st.sampled_from(digits))] = ord(data.draw(st.sampled_from("0123456789")))
        if not content:
            return
    path = tmp_path / "damaged"
    path.write_bytes(content)
    try:
        ours = read_all(path)
    except WeightsError:
        return
    theirs = load(bytes(content))
    assert ours.keys() == theirs.keys()
    assert all(ours[n].numpy(force=True).tobytes() == theirs[n].numpy(force=True).tobytes()
               for n in ours if ours[n].dtype != torch.bfloat16)  # fmt: skip


@given(content=st.binary(max_size=300))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_are_an_error(tmp_path, content):
    (tmp_path / "noise").write_bytes(content)
    with contextlib.suppress(WeightsError):
        assert read_all(tmp_path / "noise") == {}
