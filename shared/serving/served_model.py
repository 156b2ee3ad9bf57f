"""A model directory, ready to answer: weights, tokenizer, chat template, defaults and the engine over them."""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.data.chat import ChatTemplate, encode_chat
from shared.data.fallback_tokenizer import LibraryTokenizer, load_tokenizer
from shared.data.tokenizer import Tokenizer
from shared.inference.async_engine import WARM_UP_ID, AsyncLLMEngine
from shared.inference.attention import BackendUnavailable
from shared.inference.sampling import SamplingParams
from shared.measure.memory import free_unused_memory
from shared.model.calibration import calibration_ids
from shared.model.int8 import quantize_int8
from shared.model.weights import load_model
from shared.serving.kv_memory import BLOCK_SIZE, pool_size
from shared.serving.protocol import ChatRequest
from shared.serving.settings import SettingError, Settings

# When a caller sets no limit. A small model that has begun to repeat itself must not go on to the context's end.
DEFAULT_MAX_TOKENS = 1024
# A step's budget. A prompt is read in pieces of about this size, and the streams beside it stand still for one of them.
# Each token attends to all before it, so the pieces take longer and longer: 128 tokens of this small model take a CPU
# core some 0.2 s at a prompt's beginning, and more than a second behind 8,000 others. Smaller pieces would use the
# weights, which each step reads as a whole, for fewer tokens.
STEP_TOKENS = {"cpu": 128, "cuda": 2048}


@dataclass
class ServedModel:
    """`defaults` holds what a request that doesn't say is sampled with."""

    name: str
    engine: AsyncLLMEngine
    tokenizer: Tokenizer | LibraryTokenizer
    template: ChatTemplate
    defaults: SamplingParams

    @classmethod
    def load(
        cls,
        path: Path,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        int8: bool = False,
        settings: Settings | None = None,
    ) -> "ServedModel":
        """Read a model directory and build an engine on it, not yet started. Raises ValueError that names the file, and
        SettingError.

        int8: quantise the weights, once they are loaded in `dtype`. settings: how many at a time, and in what memory.
        """
        defaults = read_defaults(path)
        tokenizer, template = load_tokenizer(path), ChatTemplate.load(path)
        model = load_model(path, dtype=dtype, device=device)
        if int8:
            model = quantize_int8(model, calibration_ids(tokenizer.encode))  # the float model has no other name
            free_unused_memory()  # what it took, if its weights were converted and not mapped
        settings = settings or Settings()
        num_seqs = settings.max_num_seqs
        num_blocks = pool_size(model.config, dtype, torch.device(device), num_seqs, settings.kv_memory)
        try:
            engine = AsyncLLMEngine(
                model,
                tokenizer,
                settings.max_waiting,
                max_num_seqs=num_seqs,
                max_num_batched_tokens=max(STEP_TOKENS[device], num_seqs),
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                attention=settings.attention,
            )
        except BackendUnavailable as error:
            raise SettingError(
                f"--attention {settings.attention}: {error}. Without it, what runs here is used"
            ) from error
        return cls(model_name(path), engine, tokenizer, template, defaults)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """The prompt. Raises ValueError where the template refuses the messages, and for what the model would have room
        for and the KV memory hasn't."""
        ids = encode_chat(self.tokenizer, self.template, messages)
        engine = self.engine.engine
        if engine.max_model_len <= len(ids) and engine.max_model_len < engine.model.config.max_position_embeddings:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, and this server's KV memory is for {engine.max_model_len} tokens "
                "of prompt and answer together; shorten the prompt, or start the server with a larger --kv-memory"
            )
        return ids

    def sampling_params(self, chat: ChatRequest) -> SamplingParams:
        """What the request asks for, and the model's defaults where it doesn't; without a seed, a new one each time."""

        def given(value: float | None, default: float) -> float:
            return default if value is None else value

        return SamplingParams(
            max_tokens=chat.max_completion_tokens or chat.max_tokens or self.defaults.max_tokens,
            temperature=given(chat.temperature, self.defaults.temperature),
            top_p=given(chat.top_p, self.defaults.top_p),
            top_k=self.defaults.top_k if chat.top_k is None else chat.top_k,
            seed=secrets.randbits(63) if chat.seed is None else chat.seed,
            stop=tuple(chat.stop or ()),
        )

    async def warm_up(self) -> None:
        """Answer once for nobody, so that the first caller doesn't pay for what happens only once."""
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        async for _ in self.engine.generate(self.encode([{"role": "user", "content": "Hi"}]), params, WARM_UP_ID):
            pass


def model_name(path: Path) -> str:
    """The name a model directory is served under: the folder's own."""
    return path.resolve().name


def read_defaults(path: Path) -> SamplingParams:
    """The sampling that the model's makers recommend in generation_config.json; without one, OpenAI's: temperature 1.

    Raises ValueError naming the file.
    """
    file = path / "generation_config.json"
    if not file.is_file():
        return SamplingParams(max_tokens=DEFAULT_MAX_TOKENS, temperature=1.0)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        greedy = config.get("do_sample") is False
        return SamplingParams(
            max_tokens=DEFAULT_MAX_TOKENS,
            temperature=0.0 if greedy else config.get("temperature", 1.0),
            top_p=config.get("top_p", 1.0),
            top_k=config.get("top_k", 0),
        )
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} can't be used: {error}") from error
