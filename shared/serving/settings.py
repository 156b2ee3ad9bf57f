"""What the server can be told at its start; free of torch, so that wrong settings are told at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Attention = Literal["auto", "reference", "gather", "native", "fused", "varlen", "triton"]


class SettingError(ValueError):
    """A setting that can't be had on this computer; the message names the option."""


@dataclass(frozen=True)
class Settings:
    """The options of `python -m shared.serving`, which describes them. Keys aren't kept here: see KeyRing."""

    model: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    attention: Attention = "auto"
    max_num_seqs: int = 32
    max_waiting: int | None = None  # requests; None: half of max_num_seqs, see queue_length
    kv_memory: int | None = None  # MB
    threads: int | None = None
    local_only: bool = False  # answer only this computer, and pages of this server
    timeout: float | None = None  # s; None: from the measured P99
    grace: float = 30.0  # s
    degrade: str = "off"  # or "shorter", or a smaller model's folder
    debug: bool = False
    log_format: Literal["text", "json"] = "text"
    log_file: Path | None = None
    log_full_share: float = 0.0
    cost_per_hour: float | None = None

    @property
    def queue_length(self) -> int:
        """How many requests may wait for a place.

        With half as many as run, one waits for about half of an answer's time at most. So even when half as much again
        is asked for as can be answered, what is let in takes no more than two to three times as long as on a good day.
        """
        return self.max_num_seqs // 2 if self.max_waiting is None else self.max_waiting
