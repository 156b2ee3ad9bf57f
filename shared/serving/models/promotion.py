"""What a new version has to pass before it may serve: its files, a warm-up, and the regression gate of chapter 7.

The gate puts the same questions to the version that serves now and to the new one, through their engines, as callers
would; behind all of those, for a regression set is in no hurry.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.evaluation.gate import Report, gate
from shared.evaluation.properties import Answer
from shared.evaluation.regression import CASES, Case, Result, judge, load_cases, prompt_ids
from shared.evaluation.report import report_json
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull
from shared.inference.sampling import SamplingParams
from shared.measure.memory import MB
from shared.model.config import ModelConfig
from shared.serving.engines.engine import Engine, EngineFailed
from shared.serving.engines.kv_memory import available_memory
from shared.serving.errors import ApiError
from shared.serving.models.text_model import TextModel

WARM_UP_S = 300.0  # a kernel that is compiled on its first use may take a minute
WARM_UP_TOKENS = 4
GATE_S = 1800.0
LAST = 1_000_000  # the priority of questions that nobody waits for
AT_ONCE = 2  # questions in each engine: more would take places in its steps that callers want
PROCESS_MB = 250  # what an engine's process holds beside weights and KV: Python and torch


class Side(NamedTuple):
    """One of the two versions that are compared. results: what it answered before, by the case's id."""

    name: str
    engine: Engine
    text: TextModel
    results: dict[str, Result]


def check_folder(path: Path) -> None:
    """Raise ApiError 400, and say what is wrong, for a folder that holds no model this server can load.

    What only shows when the weights are read, the engine says later.
    """
    try:
        if not path.is_dir():
            raise _wrong_folder(f"there is no folder {path}; name one that this server's computer has")
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        ModelConfig.from_hf(config)
        if not any(path.glob("*.safetensors")):
            raise _wrong_folder(f"{path} has no *.safetensors; convert the weights first")
    except FileNotFoundError:
        raise _wrong_folder(f"{path} has no config.json; a model is a folder with one and *.safetensors") from None
    except OSError as error:
        raise _wrong_folder(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _wrong_folder(f"{path / 'config.json'}: {error}") from None


def _wrong_folder(message: str) -> ApiError:
    return ApiError(400, f"path: {message.rstrip('.')}.", param="path", code="invalid_model")


def check_memory(path: Path, loaded: Mapping[Path, str]) -> None:
    """Raise ApiError 409 when the weights and a process for them can't have the memory they need.

    loaded: folder -> device ("cpu", "cuda") of the weights that are in memory already; who maps the same files shares
    them. On a GPU only the engine can say how much there is.
    """
    free = available_memory()
    if free is None or set(loaded.values()) - {"cpu"}:
        return
    shared = path.resolve() in [other.resolve() for other in loaded]
    needed = PROCESS_MB * MB + (0 if shared else weight_bytes(path))
    if needed > free:
        message = (
            f"There is not enough memory for {path}: it takes {needed / MB:,.0f} MB before any request, and "
            f"{free / MB:,.0f} MB are available. Unload a version first, or give each a smaller --kv-memory."
        )
        raise ApiError(409, message, param="path", code="not_enough_memory")


def weight_bytes(path: Path) -> int:
    """How many bytes the folder's safetensors hold, which is about what they take when loaded."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


async def warm_up(engine: Engine, text: TextModel) -> dict[str, float]:
    """Answer for nobody, so that no caller pays for what happens only once. Returns seconds, of the first answer and of
    the same again when all is warm. Raises what the engine raises, and TimeoutError.

    A short prompt, one that takes two steps to read, and a few side by side: each is code that hasn't run yet.
    """
    limits = engine.limits
    assert limits is not None
    short = text.warm_up_prompt(limits.max_model_len)
    n_long = min(limits.max_num_batched_tokens + 16, limits.max_model_len - WARM_UP_TOKENS)
    long = (short * (n_long // len(short) + 1))[: max(n_long, 1)]
    batch = [short[1:] or short] * min(4, limits.max_num_seqs)
    async with asyncio.timeout(WARM_UP_S):
        first = await _timed(engine, [short])
        await _timed(engine, [long])
        await _timed(engine, batch)
        again = await _timed(engine, [short])
    return {"first_s": round(first, 4), "again_s": round(again, 4)}


async def _timed(engine: Engine, prompts: Sequence[Sequence[int]]) -> float:
    began = time.monotonic()
    params = SamplingParams(max_tokens=WARM_UP_TOKENS, ignore_eos=True)
    async with asyncio.TaskGroup() as group:
        for i, prompt in enumerate(prompts):
            group.create_task(_ids(engine, prompt, params, f"warm-up-{i}"))
    return time.monotonic() - began


async def _ids(engine: Engine, prompt: Sequence[int], params: SamplingParams, request_id: str) -> list[int]:
    """The tokens of an answer. An engine without a free place is asked again, and again."""
    while True:
        try:
            outputs = engine.generate(prompt, params, request_id, LAST)
            return [token async for output in outputs for token in output.token_ids]
        except QueueFull:
            await asyncio.sleep(0.1)


@dataclass(frozen=True)
class RegressionGate:
    """file: the regression set; tags: only its cases with one of them, all when empty."""

    file: Path = CASES
    tags: tuple[str, ...] = ("quick",)

    async def __call__(self, candidate: Side, baseline: Side) -> dict[str, Any]:
        """The report: chapter 7's, the baseline's name, how many cases and seconds it took, and `reasons`: why the
        candidate should not serve; empty when it may. Raises what the engines raise, and TimeoutError."""
        began = time.monotonic()
        asked: list[Case] = []
        left_out: list[Case] = []
        for case in await asyncio.to_thread(load_cases, self.file, self.tags):
            unfit = [side.name for side in (baseline, candidate) if not fits(case, side)]
            (left_out if unfit else asked).append(case)
        said = [f"{len(left_out)} cases, which one of the two can't be asked"] if left_out else []
        if not asked:
            why = f"no case of {self.file.name} can be asked of both {baseline.name} and {candidate.name}"
            return {"baseline": baseline.name, "cases": 0, "seconds": 0.0, "reasons": [why], "left_out": said}
        async with asyncio.timeout(GATE_S):
            before = await answer_cases(baseline, asked)
            after = await answer_cases(candidate, asked)
        report = gate(before, after)
        return {
            "baseline": baseline.name,
            "cases": len(asked),
            "seconds": round(time.monotonic() - began, 2),
            "reasons": reasons(report, baseline.name),
            **report_json(report, said),
        }


def fits(case: Case, side: Side) -> bool:
    """Can this version be asked the case, with room for the answer?"""
    limits = side.engine.limits
    try:
        ids = prompt_ids(case, side.text.tokenizer, side.text.template)  # type: ignore[arg-type]
    except ValueError:
        return False
    return limits is not None and len(ids) + case.max_tokens <= limits.max_model_len


async def answer_cases(side: Side, cases: Sequence[Case]) -> list[Result]:
    """The judged answers, in the cases' order. What was answered before isn't asked again."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> Result:
        known = side.results.get(case.id)
        if known is None or known.case != case:
            async with turn:
                known = side.results[case.id] = judge(case, await _answer(side, case))
        return known

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in cases]
    return [task.result() for task in tasks]


async def _answer(side: Side, case: Case) -> Answer:
    tokenizer = side.text.tokenizer
    ids = prompt_ids(case, tokenizer, side.text.template)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=case.max_tokens, temperature=case.temperature, seed=case.seed)
    try:
        ids = await _ids(side.engine, ids, params, f"regression-{side.name}-{case.id}")
    except (EngineFailed, EngineStopped, GenerationError) as error:
        raise GenerationError(f"{side.name} could not answer {case.id}: {error}") from error
    if ids and ids[-1] in tokenizer.eos_ids:
        return Answer(tokenizer.decode(ids[:-1]), "stop")
    return Answer(tokenizer.decode(ids), "length")


def reasons(report: Report, baseline: str) -> list[str]:
    """Why the candidate should not take over, in words; none when it isn't worse."""
    if not report.worse:
        return []
    failing = ", ".join(after.case.id for _, after in report.newly_failing)
    n = sum(comparison.n for comparison in report.comparisons)
    return [
        f"the regression gate: it is worse than {baseline} beyond noise; of {n} cases {len(report.newly_failing)} fail "
        f"now that didn't ({failing}), and {len(report.newly_passing)} pass that didn't"
    ]
