"""A model from a directory: config.json says what to build, safetensors files hold the numbers.

The files are mapped into memory: a page is read when it is first used, and two processes that load the same file share
its pages. Pickles are refused, for loading one runs whatever code its maker put into it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.model.config import ModelConfig
from shared.model.transformer import Transformer

Tensors = dict[str, Tensor]
FLOATS = ("F64", "F32", "F16", "BF16")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONSTANTS = (".rotary_emb.inv_freq",)  # old checkpoints store what the config already says


class WeightsError(ValueError):
    """A model directory that cannot be loaded; the message names the file or the tensor."""


def load_model(path: Path | str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Transformer:
    """Build the model in the directory `path`, in eval mode, its parameters without gradients.

    On the CPU, weights stored in `dtype` already are used in place, without a copy. Raises WeightsError.
    """
    path = Path(path)
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
        tensors |= _read_tensors(file, model.state_dict(), dtype, device)
    if missing := sorted(model.state_dict().keys() - tensors.keys()):
        raise WeightsError(f"{path}: {_some(missing)} missing from the weights, though config.json asks for them")
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model directory: one file, or the shards that an index lists."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise WeightsError(f"{index}: weight_map must map each tensor to a file beside the index")
        shards = [path / name for name in sorted(set(names.values()))]
        if absent := [shard.name for shard in shards if not shard.exists()]:
            raise WeightsError(f"{path}: {_some(absent)} missing, though {index.name} lists them; copy them again")
        return shards
    if pickles := sorted(file.name for pattern in PICKLES for file in path.glob(pattern)):
        raise WeightsError(
            f"{path}: {_some(pickles)} refused: such files are pickles, and loading one runs whatever code is inside. "
            "Look for the model's *.safetensors files."
        )
    raise WeightsError(f"{path} has no model.safetensors and no model.safetensors.index.json")


def _read_tensors(file: Path, expected: Tensors, dtype: torch.dtype, device: torch.device | str) -> Tensors:
    tensors: Tensors = {}
    try:
        with safe_open(file, framework="pt", device=str(device)) as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                if name.endswith(CONSTANTS) or (name == "lm_head.weight" and name not in expected):
                    continue  # a tied model's head is its embedding
                if name not in expected:
                    raise WeightsError(f"{file}: tensor {name!r} has no place in the model that config.json describes")
                shape, stored = opened.get_slice(name).get_shape(), opened.get_slice(name).get_dtype()
                if shape != (wanted := list(expected[name].shape)):
                    raise WeightsError(f"{file}: {name} is {shape}, and config.json makes it {wanted}")
                if stored not in FLOATS:
                    raise WeightsError(f"{file}: {name} is stored as {stored}; only {', '.join(FLOATS)} can be loaded")
                tensors[name] = opened.get_tensor(name).to(dtype)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file} is damaged or cut short ({error}); copy or fetch it again") from error
    return tensors


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{file.parent} has no {file.name}; without it nobody knows the model's shape") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


def _some(names: list[str]) -> str:
    """At most three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
