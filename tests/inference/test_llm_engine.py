"""What LLMEngine answers is what each request would get alone: the ladder of equivalence, and storms of requests."""

import random
from dataclasses import replace

import pytest
import torch

from shared.inference.llm_engine import LLMEngine
from shared.inference.sampling import SamplingParams
from shared.inference.static_batch import static_batch
from tests.inference.small_engine import MODEL, SMALL, Hooked, alone, check_idle, drain, tokens
from tests.tiny import TINY, tiny_model


def requests(n: int, seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of an alphabet of two blocks, of lengths at a block's edge, some twice; greedy, sampled, penalised."""
    rng = random.Random(seed)
    blocks = [[1, 2, 3, 4], [5, 6, 7, 8]]
    prompts: list[list[int]] = []
    for _ in range(n):
        tail = [rng.randrange(97) for _ in range(rng.choice([0, 1, rng.randint(1, 9)]))]
        fresh = [t for _ in range(rng.randint(0, 4)) for t in rng.choice(blocks)] + tail or [9]
        prompts.append(list(rng.choice(prompts)) if prompts and rng.random() < 0.25 else fresh)
    params = [
        SamplingParams(
            max_tokens=rng.randint(1, 9),
            temperature=rng.choice([0.0, 0.0, 1.0]),
            seed=rng.randrange(100),
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        )
        for _ in range(n)
    ]
    return prompts, params


# The ladder: each rung gives the same tokens. In float64, so that no rounding decides between two.


@torch.inference_mode()
def naive(prompt: list[int], n: int) -> list[int]:
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(MODEL(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


PROMPTS = [[5, 9, 2], [1, 2, 3, 4, 5, 6, 7, 8], [44] * 17, list(range(30))]
GREEDY = [SamplingParams(max_tokens=n) for n in (20, 12, 16, 9)]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    return [naive(prompt, params.max_tokens) for prompt, params in zip(PROMPTS, GREEDY, strict=True)]


def test_cached(wanted):
    assert [alone(prompt, params) for prompt, params in zip(PROMPTS, GREEDY, strict=True)] == wanted


def test_static_batch(wanted):
    got: list[list[int]] = [[] for _ in PROMPTS]
    for index, token in static_batch(MODEL, PROMPTS, GREEDY, batch_size=3):
        got[index].append(token)
    assert got == wanted


@pytest.mark.parametrize("attention", ["reference", "gather"])
def test_paged_one_at_a_time(wanted, attention):
    engine = LLMEngine(MODEL, max_num_seqs=1, block_size=4, num_blocks=20, attention=attention)
    assert [answer.token_ids for answer in engine.generate(PROMPTS, GREEDY)] == wanted


def test_continuous(wanted):
    engine = LLMEngine(MODEL, block_size=4, num_blocks=100, max_num_seqs=8, max_num_batched_tokens=16)
    for k, (prompt, params) in enumerate(zip(PROMPTS, GREEDY, strict=True)):
        engine.add_request(str(k), prompt, params)
        outputs = engine.step()  # they come one by one, into a running batch, and are read in pieces
        assert isinstance(outputs, list)
    running = [list(s.output_ids) for s in engine.scheduler.running]
    assert len(running) == 4
    drained = [[] for _ in PROMPTS]
    sequences = {s.request_id: s for s in engine.scheduler.running}
    drain(engine)
    for request_id, sequence in sequences.items():
        drained[int(request_id)] = sequence.output_ids
    assert drained == wanted


def test_preempted_and_resumed(wanted):
    for prefix_caching in (True, False):
        engine = LLMEngine(MODEL, **SMALL | {"num_blocks": 12, "prefix_caching": prefix_caching})
        gone = count_preemptions(engine)
        assert [answer.token_ids for answer in engine.generate(PROMPTS, GREEDY)] == wanted
        assert len(gone) >= 2
        check_idle(engine)


def test_prefix_cached(wanted):
    engine = LLMEngine(MODEL, block_size=4, num_blocks=100)
    for hits in (False, True):
        before = engine.blocks.hit_tokens
        assert [answer.token_ids for answer in engine.generate(PROMPTS, GREEDY)] == wanted
        assert (engine.blocks.hit_tokens - before > 20) == hits


def count_preemptions(engine: LLMEngine) -> list:
    gone: list = []
    schedule = engine.scheduler.schedule

    def watched():
        step = schedule()
        gone.extend(step.preempted)
        return step

    engine.scheduler.schedule = watched
    return gone


@pytest.mark.real
def test_the_real_model(real_model, tokenizer):
    """SmolLM2 in float32: the same greedy tokens as alone, as long as the runner-up isn't as good as the winner."""
    texts = ["The capital of France is", "def fibonacci(n):\n"]
    prompts = [tokenizer.encode(text) for text in texts]
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2)
    engine = LLMEngine(real_model, max_num_seqs=2, max_num_batched_tokens=4, num_blocks=4)
    for prompt, answer in zip(prompts, engine.generate(prompts, params), strict=True):
        for got, want, entry in zip(answer.token_ids, alone(prompt, params, real_model), answer.logprobs, strict=True):
            if got != want:
                assert entry.top[0][1] - entry.top[1][1] < 1e-3, "another token, and it wasn't a tie"
                break  # after another token the text is another


# Storms on the model itself.


def test_storms():
    for seed in range(24):
        rng = random.Random(seed)
        prompts, params = requests(rng.randint(3, 8), seed)
        params = [replace(p, n=rng.choice([1, 1, 1, 3])) for p in params]
        aborted: set[str] = set()
        engine = LLMEngine(
            Hooked(lambda ids: leave(engine, rng, aborted, in_flight=True)),  # noqa: B023
            **SMALL | {"num_blocks": rng.randint(12, 24), "prefix_caching": rng.random() < 0.8},
        )
        todo, outputs = list(range(len(prompts))), {}
        while todo or engine.has_unfinished:
            while todo and rng.random() < 0.6:
                k = todo.pop()
                engine.add_request(str(k), prompts[k], params[k], priority=rng.choice([0, 0, -1, 1]))
            for request_id, output in engine.step():
                assert request_id not in aborted
                outputs.setdefault((int(request_id), output.index), []).append(output)
            tables = [s.block_table for answers in engine._requests.values() for s in answers]
            engine.blocks.check(tables)
            leave(engine, rng, aborted)
        check_idle(engine)
        for k, prompt in enumerate(prompts):
            for index in range(params[k].n):
                got = outputs.get((k, index), [])
                want = alone(prompt, replace(params[k], seed=params[k].seed + index))
                assert tokens(got) == (want if str(k) not in aborted else want[: len(got)]), f"storm {seed}"
                if str(k) not in aborted:
                    assert [o.finish_reason for o in got] == [None] * (len(got) - 1) + ["length"]


def leave(engine: LLMEngine, rng: random.Random, aborted: set[str], in_flight: bool = False) -> None:
    """Now and then a caller leaves."""
    if engine._requests and rng.random() < (0.04 if in_flight else 0.02):
        request_id = rng.choice(list(engine._requests))
        aborted.add(request_id)
        engine.abort(request_id)


def test_a_step_of_more_tokens_than_one_context():
    model = tiny_model(config=replace(TINY, max_position_embeddings=16))
    prompts = [[k, k + 1, k + 2, k + 3, k + 4] for k in range(8)]
    params = SamplingParams(max_tokens=4)
    answers = LLMEngine(model, block_size=4, attention="gather").generate(prompts, params)
    assert [a.token_ids for a in answers] == [alone(p, params, model) for p in prompts]
