"""From a model's folder to an engine over it: weights, their precision, the pool for keys and values, attention."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.inference.answer_text import EngineTokenizer
from shared.inference.attention import BackendUnavailable
from shared.inference.llm_engine import LLMEngine
from shared.model.transformer import Transformer
from shared.model.weights import load_model
from shared.serving.engines.kv_memory import BLOCK_SIZE, pool_size
from shared.serving.settings import SettingError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# A step's budget. A prompt is read in pieces of about this size, and the streams beside it stand still for one of them.
# Each token attends to all before it, so the pieces take longer and longer: 128 tokens of this small model take a CPU
# core some 0.2 s at a prompt's beginning, and more than a second behind 8,000 others. Smaller pieces would use the
# weights, which each step reads as a whole, for fewer tokens.
STEP_TOKENS = {"cpu": 128, "cuda": 2048}
UNBOUNDED = 10**6  # requests that may wait in the engine: whoever hands them to it has a bound


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is to be. device, dtype and attention may be "auto"; dtype may be "int8". kv_memory: MB;
    num_blocks: the pool's size itself, instead. threads: None leaves it to torch."""

    device: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    max_num_seqs: int = 32
    kv_memory: int | None = None
    num_blocks: int | None = None
    threads: int | None = None


def resolved(options: EngineOptions) -> tuple[str, str]:
    """The device and the dtype that "auto" means here. Raises SettingError for a device there isn't."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda: this torch sees no CUDA device. Leave --device out to compute on the CPU")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    natural = "bfloat16" if device == "cuda" else "float32"
    return device, natural if options.dtype == "auto" else options.dtype


def load_engine(
    path: Path,
    options: EngineOptions,
    version: str = "",
    tokenizer: EngineTokenizer | None = None,
    eos_ids: Iterable[int] = (),
    max_waiting: int = UNBOUNDED,
) -> LLMEngine:
    """Read a model directory and build an engine on it. Raises ValueError that names the file, and SettingError.

    tokenizer, eos_ids: LLMEngine's. Sets torch's number of threads, which is the process's.
    """
    device, dtype = resolved(options)
    if options.threads is not None:
        torch.set_num_threads(options.threads)  # torch's own default is one for each physical core
    loaded_in = DTYPES[dtype] if dtype != "int8" else DTYPES["bfloat16" if device == "cuda" else "float32"]
    if dtype == "int8":
        model = quantized(load_model(path, dtype=loaded_in, device=device), path)
    else:
        model = load_model(path, dtype=loaded_in, device=device)
    num_seqs, num_blocks = options.max_num_seqs, options.num_blocks
    if num_blocks is None:
        num_blocks = pool_size(model.config, loaded_in, torch.device(device), num_seqs, options.kv_memory)
    try:
        return LLMEngine(
            model,
            tokenizer,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=max(STEP_TOKENS[device], num_seqs),
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            attention=options.attention,
            max_waiting=max_waiting,
            version=version,
            eos_ids=eos_ids,
        )
    except BackendUnavailable as error:
        raise SettingError(f"--attention {options.attention}: {error}. Without it, what runs here is used") from error


def quantized(model: Transformer, path: Path) -> Transformer:
    """The model in int8. What that takes is imported only now: an engine that has died must be back soon."""
    from shared.data.fallback_tokenizer import load_tokenizer
    from shared.measure.memory import free_unused_memory
    from shared.model.calibration import calibration_ids
    from shared.model.int8 import quantize_int8

    model = quantize_int8(model, calibration_ids(load_tokenizer(path).encode))  # the float model has no other name
    free_unused_memory()  # what it took, if its weights were converted and not mapped
    return model
