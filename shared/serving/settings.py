"""What the server can be told at its start; free of torch, so that wrong settings are told at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Attention = Literal["auto", "reference", "gather", "native", "fused", "varlen", "triton"]


class SettingError(ValueError):
    """A setting that can't be had on this computer; the message names the option."""


@dataclass(frozen=True)
class Settings:
    """The options of `python -m shared.serving`, which describes them."""

    model: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    attention: Attention = "auto"
    max_num_seqs: int = 32
    max_waiting: int = 16
    kv_memory: int | None = None  # MB
    threads: int | None = None
    api_key: str | None = None
