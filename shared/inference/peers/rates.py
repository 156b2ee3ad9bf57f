"""The same four measurements for every stack: throughput on a trace, single-stream decode, and prefill."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from shared.measure.memory import peak_memory_mb
from shared.measure.trace import Trace, TraceRequest

Told = Callable[[int], None]  # so many tokens more are done
Answer = Callable[[Trace, Told], list[list[int]]]  # greedy, EOS ignored: max_new_tokens ids for each request, in order

DECODE_PROMPT, DECODE_TOKENS, PREFILL_TOKENS = 16, 128, 512
REPEATS = 3  # of the short ones; the fastest counts
VOCAB = (100, 49_152)  # where the ids of random prompts come from; SmolLM2's first ids are special tokens


def random_request(rng: random.Random, n_prompt: int, n_output: int, vocab_size: int) -> TraceRequest:
    """A request that nobody has seen before, so that no prefix cache can help."""
    low, high = min(VOCAB[0], vocab_size // 2), min(VOCAB[1], vocab_size)
    return TraceRequest(tuple(rng.randrange(low, high) for _ in range(n_prompt)), n_output)


def rates(answer: Answer, trace: Trace, vocab_size: int, told: Told) -> dict[str, Any]:
    """Measure a stack.

    out_tok_s, total_tok_s: of the whole trace, all requests there from the start. decode1_tok_s: one request of 16
    prompt tokens, 128 new ones; the time of one that ends after its first token is taken off, so that the rate is
    decode's alone. prefill512_tok_s: 512 prompt tokens, one new one. wall_s, cpu_s: of the trace, the second over all
    threads of the process; out_tok_cpu_s: output tokens per second of that. first_tokens: of each answer.
    Raises ValueError for an answer that isn't as long as asked.
    """
    rng = random.Random(0)

    def seconds(n_prompt: int, n_output: int) -> float:
        request = random_request(rng, n_prompt, n_output, vocab_size)
        start = time.perf_counter()
        found = answer([request], told)
        took = time.perf_counter() - start
        check_lengths(found, [request])
        return took

    for n_prompt in (DECODE_PROMPT, PREFILL_TOKENS):
        seconds(n_prompt, 2)  # a warm-up
    first = min(seconds(DECODE_PROMPT, 1) for _ in range(REPEATS))
    whole = min(seconds(DECODE_PROMPT, DECODE_TOKENS) for _ in range(REPEATS))
    prefill = min(seconds(PREFILL_TOKENS, 1) for _ in range(REPEATS))
    start, cpu = time.perf_counter(), time.process_time()
    answers = answer(trace, told)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    check_lengths(answers, trace)
    n_prompt, n_output = sum(len(r.prompt_ids) for r in trace), sum(map(len, answers))
    return {
        "out_tok_s": n_output / wall,
        "total_tok_s": (n_prompt + n_output) / wall,
        "decode1_tok_s": (DECODE_TOKENS - 1) / max(whole - first, 1e-9),
        "prefill512_tok_s": PREFILL_TOKENS / prefill,
        "prompt_tokens": n_prompt,
        "output_tokens": n_output,
        "wall_s": wall,
        "cpu_s": cpu,
        "out_tok_cpu_s": n_output / max(cpu, 1e-9),
        "peak_memory_mb": peak_memory_mb(),
        "first_tokens": [tokens[0] for tokens in answers],
    }


def tokens_to_come(trace: Trace) -> int:
    """How many tokens `rates` will generate, for a progress bar."""
    return 4 + REPEATS * (DECODE_TOKENS + 2) + sum(request.max_new_tokens for request in trace)


def check_lengths(answers: Sequence[Sequence[int]], requests: Trace) -> None:
    """Raises ValueError unless every answer has as many tokens as its request asked for: the work must be the same."""
    if len(answers) != len(requests):
        raise ValueError(f"{len(answers)} answers to {len(requests)} requests")
    for i, (tokens, request) in enumerate(zip(answers, requests, strict=True)):
        if len(tokens) != request.max_new_tokens:
            raise ValueError(f"requests[{i}]: {len(tokens)} tokens of the {request.max_new_tokens} asked for")


def sorted_batches(requests: Trace, size: int = 8) -> list[list[int]]:
    """Indices in static batches of neighbours in output length: the longest rows first, each with its like."""
    order = sorted(range(len(requests)), key=lambda i: -requests[i].max_new_tokens)
    return [order[at : at + size] for at in range(0, len(order), size)]
