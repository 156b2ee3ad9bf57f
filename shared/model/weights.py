"""A model from a directory: config.json says what to build, safetensors files hold the numbers.

The files are mapped into memory: a page is read when it is first used, and two processes that load the same file share
its pages. Pickles are refused, for loading one runs whatever code its maker put into it.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.measure.files import replacing
from shared.model.config import ModelConfig
from shared.model.tensor_file import TensorFile, WeightsError, shown, unique_names, write_tensors
from shared.model.transformer import Transformer

Tensors = dict[str, Tensor]
FLOATS = ("F64", "F32", "F16", "BF16")
COMPUTE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONSTANTS = (".rotary_emb.inv_freq",)  # old checkpoints store what the config already says


def load_model(path: Path | str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Transformer:
    """Build the model in the directory `path`, in eval mode, its parameters without gradients.

    On the CPU, weights stored in `dtype` already are used in place, without a copy; others are converted one at a
    time, so that no more than one is in memory twice. Raises WeightsError.
    """
    path = Path(path)
    if dtype not in COMPUTE:
        raise WeightsError(f"a model can't compute in {dtype}, only in {', '.join(map(str, COMPUTE))}")
    if torch.device(device).type == "meta":
        raise WeightsError("the device 'meta' has no memory to load weights into; Transformer(config) has their shapes")
    if not path.is_dir():
        raise WeightsError(f"{path} is not a folder; a model is a folder with config.json and *.safetensors")
    try:
        config = ModelConfig.from_hf(_read_json(path / "config.json"))
    except ValueError as error:
        raise error if isinstance(error, WeightsError) else WeightsError(f"{path / 'config.json'}: {error}") from error
    with torch.device("meta"):  # shapes and names, no memory
        model = Transformer(config)
    tensors: Tensors = {}
    for file in weight_files(path):
        read = _read_tensors(file, model.state_dict(), dtype, device)
        if twice := sorted(tensors.keys() & read.keys()):
            raise WeightsError(f"{file}: {_some(twice)} stored in another shard, too; nobody can say which one counts")
        tensors |= read
    if missing := sorted(model.state_dict().keys() - tensors.keys()):
        raise WeightsError(f"{path}: {_some(missing)} missing from the weights, though config.json asks for them")
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)


def save_model(model: Transformer, path: Path | str) -> None:
    """Write config.json and model.safetensors into the folder `path`, which is made if need be.

    Each file is replaced in one step, so a kill leaves the old one or the new one. Parameters keep their dtype.
    Raises WeightsError for a quantised model, which `load_model` could not read back.
    """
    path = Path(path)
    with torch.device("meta"):
        plain = Transformer(model.config).state_dict()
    if odd := sorted(model.state_dict().keys() ^ plain.keys()):
        raise WeightsError(f"{_some(odd)}: only plain weights can be saved. Save the model before it is quantised")
    path.mkdir(parents=True, exist_ok=True)
    config = json.dumps(model.config.to_hf(), indent=2) + "\n"
    with replacing(path / "config.json", to_disk=True) as part:
        part.write_text(config, encoding="utf-8")
    with replacing(path / "model.safetensors", to_disk=True) as part:
        write_tensors(part, model.state_dict())


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model directory: one file, or the shards that an index lists."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(map(_is_file_name, names.values())):
            raise WeightsError(f"{index}: weight_map must map each tensor to a file beside the index")
        shards = [path / name for name in sorted(set(names.values()))]
        if absent := [shard.name for shard in shards if not os.path.isfile(shard)]:
            raise WeightsError(f"{path}: {_some(absent)} missing, though {index.name} lists them; copy them again")
        return shards
    if pickles := sorted(file.name for pattern in PICKLES for file in path.glob(pattern)):
        raise WeightsError(
            f"{path}: {_some(pickles)} refused: such files are pickles, and loading one runs whatever code is inside. "
            "Look for the model's *.safetensors files."
        )
    raise WeightsError(f"{path} has no model.safetensors and no model.safetensors.index.json")


def _read_tensors(path: Path, expected: Tensors, dtype: torch.dtype, device: torch.device | str) -> Tensors:
    tensors: Tensors = {}
    file = TensorFile(path)
    for name, entry in file.entries.items():
        if name.endswith(CONSTANTS) or (name == "lm_head.weight" and name not in expected):
            continue  # a tied model's head is its embedding
        if name not in expected:
            raise WeightsError(f"{path}: tensor {shown(name)} has no place in the model that config.json describes")
        if entry.shape != (wanted := tuple(expected[name].shape)):
            raise WeightsError(f"{path}: {name} is {list(entry.shape)}, and config.json makes it {list(wanted)}")
        if entry.dtype not in FLOATS:
            raise WeightsError(f"{path}: {name} is stored as {entry.dtype}; only {', '.join(FLOATS)} can be loaded")
        mapped = file.tensor(name)
        tensors[name] = mapped.to(device=device, dtype=dtype)
        if tensors[name] is not mapped:
            file.release(name)
    return tensors


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if file.exists() and not file.is_file():  # opening a pipe would wait for someone to write into it
            raise WeightsError("it isn't a regular file")
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=unique_names)
    except FileNotFoundError as error:
        raise WeightsError(f"{file.parent} has no {file.name}; without it nobody knows the model's shape") from error
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


def _is_file_name(name: Any) -> bool:
    """Whether it names something in the folder itself: no path, and not the folder or its parent."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def _some(names: list[str]) -> str:
    """At most three names, and how many more there are."""
    return ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
