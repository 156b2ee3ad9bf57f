"""LLMEngine: one request after the other is the oracle; then what a caller may do wrong, and what may fail."""

import random
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from shared.inference.engine_settings import free_bytes
from shared.inference.generate import generate
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError, QueueFull, RequestOutput
from shared.inference.sampler import logprobs_of
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import NeverFits
from shared.inference.static_batch import static_batch
from tests.inference.scripted import EOS, SILENT, ByteTokenizer
from tests.tiny import TINY, tiny_model

MODEL = tiny_model()
SMALL = {"block_size": 4, "num_blocks": 16, "max_num_seqs": 4, "max_num_batched_tokens": 9, "attention": "gather"}


def alone(prompt: list[int], params: SamplingParams, model=MODEL, eos_ids=frozenset()) -> list[int]:
    return list(generate(model, prompt, replace(params, n=1, logprobs=None, stop=()), eos_ids))


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


def drain(engine: LLMEngine) -> dict[str, list[RequestOutput | GenerationError]]:
    """Step until nothing is left: all outputs, by request."""
    outputs: dict[str, list] = {}
    for _ in range(1000):
        if not engine.has_unfinished:
            check_idle(engine)
            return outputs
        for request_id, output in engine.step():
            outputs.setdefault(request_id, []).append(output)
    raise AssertionError("no end")


def check_idle(engine: LLMEngine) -> None:
    assert engine.blocks.num_free == engine.blocks.num_blocks, "blocks leaked"
    engine.blocks.check([])
    assert not engine.scheduler.running
    assert engine.scheduler.num_waiting == 0


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


class Hooked(nn.Module):
    """The tiny model; `before` is called in each pass with the ids, and may abort requests, or raise."""

    def __init__(self, before, model=MODEL) -> None:
        super().__init__()
        self.model, self.config, self.before = model, model.config, before

    def forward(self, ids, *args, **kwargs):
        self.before(ids)
        return self.model(ids, *args, **kwargs)


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


# Leaving.


def test_abort_between_steps_and_while_one_is_in_flight():
    wishes: list[str] = []
    engine = LLMEngine(Hooked(lambda ids: [engine.abort(wishes.pop()) for _ in range(len(wishes))]), **SMALL)
    for name in "abc":
        engine.add_request(name, [1, 2, 3, ord(name) - 90], SamplingParams(max_tokens=20))
    assert {name for name, _ in engine.step()} == {"a", "b"}  # nine tokens a step: c's prompt isn't read yet
    engine.abort("a")
    engine.abort("a")
    engine.abort("nobody")
    assert {name for name, _ in engine.step()} == {"b", "c"}
    wishes[:] = ["b", "b"]
    assert {name for name, _ in engine.step()} == {"c"}, "what an aborted request computed is not handed out"
    assert tokens(drain(engine)["c"]) == alone([1, 2, 3, 9], SamplingParams(max_tokens=20))[2:]


def test_an_aborted_request_keeps_its_blocks_until_the_step_is_over():
    held = []

    def leave_now(ids):
        engine.abort("a")
        held.append(engine.blocks.num_blocks - engine.blocks.num_free)

    engine = LLMEngine(Hooked(leave_now), **SMALL)
    engine.add_request("a", [1] * 6, SamplingParams(max_tokens=3))
    assert engine.step() == []
    assert held == [2], "the model is writing into them"
    check_idle(engine)


def test_abort_of_an_unknown_id_in_flight_spares_a_later_request_of_that_name():
    def leave_and_come(ids):
        if turn.pop():
            engine.abort("x")
            engine.add_request("x", [7], SamplingParams(max_tokens=3))

    turn = [False] * 20 + [True]
    engine = LLMEngine(Hooked(leave_and_come), **SMALL)
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=3))
    assert tokens(drain(engine)["x"]) == alone([7], SamplingParams(max_tokens=3))


def test_an_id_is_free_again_after_its_abort():
    engine = LLMEngine(MODEL, **SMALL)
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=3))
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add_request("a", [1, 2], SamplingParams(max_tokens=3))
    engine.abort("a")
    assert not engine.has_unfinished
    engine.add_request("a", [7], SamplingParams(max_tokens=3))
    assert tokens(drain(engine)["a"]) == alone([7], SamplingParams(max_tokens=3))


def test_ctrl_c_in_a_step_leaves_a_sound_engine():
    def interrupt(ids):
        if ids.shape[1] == 7:
            raise KeyboardInterrupt

    engine = LLMEngine(Hooked(interrupt), **SMALL)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2, 3, 4, 5, 6, 7]], SamplingParams(max_tokens=3))
    assert not engine.has_unfinished
    check_idle(engine)
    assert engine.generate([[7]], SamplingParams(max_tokens=3))[0].token_ids == alone([7], SamplingParams(max_tokens=3))


def test_ctrl_c_drops_those_who_wait_too():
    def interrupt(ids):
        if 13 in ids[0].tolist():
            raise KeyboardInterrupt

    engine = LLMEngine(Hooked(interrupt), **SMALL)
    engine.add_request("a", [13] * 9, SamplingParams(max_tokens=3))
    engine.add_request("b", [5], SamplingParams(max_tokens=3))
    root = engine.blocks.root
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.has_unfinished
    check_idle(engine)
    assert engine.blocks.root == root, "the model's version is the same"
    engine.add_request("b", [5], SamplingParams(max_tokens=3))
    assert tokens(drain(engine)["b"]) == alone([5], SamplingParams(max_tokens=3))


@pytest.mark.parametrize("seed", range(40))
def test_ctrl_c_on_any_line(seed):
    """Between any two lines of the scheduler's, the blocks' or the engine's."""
    engine, left = LLMEngine(MODEL, **SMALL), random.Random(seed).randrange(3000)
    files = ("scheduler.py", "block_manager.py", "llm_engine.py")

    def lines(frame, event, arg):
        nonlocal left
        left -= 1
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return lines

    sys.settrace(lambda frame, event, arg: lines if frame.f_code.co_filename.endswith(files) else None)
    try:
        engine.generate([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [9] * 9], SamplingParams(max_tokens=8))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    check_idle(engine)
    assert not engine.has_unfinished
    [answer] = engine.generate([[7]], SamplingParams(max_tokens=3))
    assert answer.token_ids == alone([7], SamplingParams(max_tokens=3))


# Failing.

POISON = 96


@pytest.fixture(scope="module")
def poisoned_model():
    """A model that makes NaN of one token, and of everything that attends to it."""
    model = tiny_model(config=replace(TINY, tie_word_embeddings=False))
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
        model.lm_head.weight[POISON] = 0.0  # and it never says it itself
    return model


@pytest.mark.parametrize("where", [0, 3, 4, 9])
def test_nan_fails_one_request_alone(poisoned_model, where, caplog):
    prompt = list(range(10, 20))
    sick = [*prompt[:where], POISON, *prompt[where:]]
    engine = LLMEngine(poisoned_model, **SMALL | {"num_blocks": 14})
    params = SamplingParams(max_tokens=12)
    others = [[1, 2, 3], prompt, [8] * 6]
    for round in range(3):  # the blocks it leaves are used again
        engine.add_request("sick", sick, params)
        for k, other in enumerate(others):
            engine.add_request(str(k), other, params)
        outputs = drain(engine)
        [failure] = outputs.pop("sick")
        assert isinstance(failure, GenerationError), round
        assert "not finite" in str(failure)
        assert [tokens(outputs[str(k)]) for k in range(3)] == [alone(p, params, poisoned_model) for p in others]
    assert "request sick failed" in caplog.text


@pytest.mark.parametrize("n", [1, 2])
def test_nan_left_behind_hurts_nobody(poisoned_model, n):
    """A prompt is read in pieces and aborted before its first token shows that it's sick. Its blocks go to others."""
    engine = LLMEngine(poisoned_model, **SMALL | {"num_blocks": 8})
    params = SamplingParams(max_tokens=9)
    for _ in range(3):
        engine.add_request("sick", [POISON] * 20, params)
        assert engine.step() == []
        engine.abort("sick")
        for k in range(n):
            engine.add_request(str(k), [k, k + 1], params)
        outputs = drain(engine)
        want = [alone([k, k + 1], params, poisoned_model) for k in range(n)]
        assert [tokens(outputs[str(k)]) for k in range(n)] == want


def test_a_model_that_raises_fails_those_it_raises_for():
    def refuse(ids):
        if 13 in ids[0].tolist():
            raise RuntimeError("unlucky")

    engine = LLMEngine(Hooked(refuse), **SMALL | {"num_blocks": 30})
    prompts = {"a": [1, 2], "unlucky": [5, 13, 6], "b": [3, 4, 5]}
    params = SamplingParams(max_tokens=6, n=2, temperature=1.0)
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, params)
    outputs = drain(engine)
    assert [str(failure) for failure in outputs.pop("unlucky")] == ["RuntimeError: unlucky"]
    for name, got in outputs.items():
        for k in range(2):
            mine = [output for output in got if output.index == k]
            assert tokens(mine) == alone(prompts[name], replace(params, seed=k))


def test_a_failure_with_shared_blocks_copies_once():
    """n answers write their copies of one block in the step that fails: the second try must not undo the first."""
    turn = iter(range(1000))

    def refuse(ids):
        if next(turn) == 1:  # the step after the prompt, in which blocks are copied
            raise RuntimeError("once")

    engine = LLMEngine(Hooked(refuse), **SMALL | {"num_blocks": 30})
    params = SamplingParams(max_tokens=8, n=3, temperature=1.0)
    answers = engine.generate([[1, 2, 3, 4, 5, 6]], params)
    assert [a.token_ids for a in answers] == [alone([1, 2, 3, 4, 5, 6], replace(params, seed=k)) for k in range(3)]


def test_a_copy_that_fails_is_made_again():
    engine = LLMEngine(MODEL, **SMALL | {"num_blocks": 30})
    copy, failures = engine.pool.copy_blocks, ["out of memory"]

    def fail_once(pairs):
        if pairs and failures:
            raise RuntimeError(failures.pop())
        copy(pairs)

    engine.pool.copy_blocks = fail_once
    params = SamplingParams(max_tokens=8, n=3, temperature=1.0)
    answers = engine.generate([[1, 2, 3, 4, 5, 6]], params)
    assert [a.token_ids for a in answers] == [alone([1, 2, 3, 4, 5, 6], replace(params, seed=k)) for k in range(3)]
    assert not failures


class FailsLate(Hooked):
    """Computes and writes, and only then raises: in four of ten steps with several tokens."""

    def forward(self, ids, *args, **kwargs):
        logits = self.model(ids, *args, **kwargs)
        if ids.shape[1] > 1 and self.before(ids) < 0.4:
            raise RuntimeError("late")
        return logits


@pytest.mark.parametrize("seed", [87, 107, 111, 122, 123, 164, 176, 194])
def test_a_step_that_fails_after_writing(seed):
    """All are equally urgent. So a block that one was copied from can be another's in the same step, with new numbers
    in it by the time the step is tried again."""
    rng = random.Random(seed)
    engine = LLMEngine(
        FailsLate(lambda ids: rng.random()),
        **SMALL | {"num_blocks": rng.randint(6, 9), "max_num_seqs": 6, "max_num_batched_tokens": 40},
        clock=lambda: 0.0,
    )
    wanted = {}
    for k in range(3):
        prompt = [rng.randrange(90) for _ in range(rng.randint(2, 6))]
        wanted[str(k)] = prompt, SamplingParams(rng.randint(3, 10), n=rng.choice([1, 2, 3]), temperature=1.0, seed=k)
        engine.add_request(str(k), *wanted[str(k)])
    for name, outputs in drain(engine).items():
        prompt, params = wanted[name]
        for k in range(params.n):
            mine = [o for o in outputs if isinstance(o, RequestOutput) and o.index == k]
            want = alone(prompt, replace(params, seed=params.seed + k))
            assert tokens(mine) == (want if isinstance(outputs[-1], RequestOutput) else want[: len(mine)])


def test_generate_says_which_prompt_failed(poisoned_model):
    engine = LLMEngine(poisoned_model, **SMALL)
    with pytest.raises(GenerationError) as failure:
        engine.generate([[1], [2], [3, POISON]], SamplingParams(max_tokens=4))
    assert failure.value.__notes__ == ["while answering prompts[2]"]
    check_idle(engine)


# Refusing.


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "the prompt is empty"),
        ([97], {}, "outside 0 to 96"),
        ([1] * 40, {}, "40 tokens"),
        ([1], {"stop": ("x",)}, "stop: this engine has no tokenizer"),
        ([1], {"n": 2000}, "n: 2000 answers"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(prompt, params, words):
    engine = LLMEngine(MODEL, **SMALL, max_model_len=40)
    with pytest.raises(ValueError, match=words):
        engine.add_request("a", prompt, SamplingParams(**params))
    assert not engine.has_unfinished


def test_a_request_larger_than_the_pool():
    engine = LLMEngine(MODEL, **SMALL, max_model_len=200)  # the pool holds 64
    with pytest.raises(NeverFits, match="the pool has 16"):
        engine.add_request("a", [1] * 70, SamplingParams(max_tokens=50))
    [answer] = engine.generate([[1] * 30], SamplingParams(max_tokens=50))
    assert (len(answer.token_ids), answer.finish_reason) == (34, "length"), "it ends with the pool"


@pytest.mark.parametrize("priority", ["high", None, 1.5, float("nan"), 10**400, True])
def test_a_priority_is_a_whole_number(priority):
    engine = LLMEngine(MODEL, **SMALL)
    with pytest.raises(ValueError, match="priority must be a whole number"):
        engine.add_request("a", [1], SamplingParams(), priority=priority)
    check_idle(engine)


def test_parameters_that_are_none():
    with pytest.raises(ValueError, match="params must be SamplingParams, not None"):
        LLMEngine(MODEL, **SMALL).add_request("a", [1], None)


def test_max_tokens_ends_with_the_context():
    engine = LLMEngine(MODEL, **SMALL, max_model_len=12)
    [answer] = engine.generate([[1] * 9], SamplingParams(max_tokens=1000))
    assert (answer.token_ids, answer.finish_reason) == (alone([1] * 9, SamplingParams(max_tokens=3)), "length")
    whole = LLMEngine(MODEL, attention="gather")  # the model's own context of 256
    [answer] = whole.generate([[1] * 250], SamplingParams(max_tokens=1000))
    assert len(answer.token_ids) == 6


def test_the_queue_is_full():
    engine = LLMEngine(MODEL, **SMALL, max_waiting=1)
    for k in range(5):
        engine.add_request(str(k), [1, 2], SamplingParams(max_tokens=2))
    with pytest.raises(QueueFull):
        engine.add_request("5", [1, 2], SamplingParams(max_tokens=2))
    assert set(drain(engine)) == {"0", "1", "2", "3", "4"}
    answers = engine.generate([[k] for k in range(12)], SamplingParams(max_tokens=2))  # more than may wait: in turn
    assert [a.token_ids for a in answers] == [alone([k], SamplingParams(max_tokens=2)) for k in range(12)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 1000}, "max_model_len must be from 2 to the model's context of 256, not 1000"),
        ({"max_model_len": "8"}, "max_model_len must be a whole number of at least 1, not '8'"),
        ({"num_blocks": 4, "kv_bytes": 1000}, "give one of them"),
        ({"kv_bytes": 10}, "10 bytes hold no block of 16 tokens, which takes"),
        ({"block_size": 0}, "block_size must be a whole number of at least 1, not 0"),
        ({"max_num_seqs": 2.5}, "max_num_seqs must be a whole number of at least 1, not 2.5"),
        ({"max_num_batched_tokens": True}, "max_num_batched_tokens must be a whole number"),
        ({"max_waiting": None}, "max_waiting must be a whole number of at least 0, not None"),
        ({"num_blocks": 1, "block_size": 1}, "no room for a prompt and an answer"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(ValueError, match=words):
        LLMEngine(MODEL, **settings)


def test_a_gpu_keeps_some_memory_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert free_bytes(torch.device("cuda")) == 900


def test_generate_refuses_what_it_would_lose():
    engine = LLMEngine(MODEL, **SMALL)
    with pytest.raises(ValueError, match="2 params for 1 prompts"):
        engine.generate([[1]], [SamplingParams()] * 2)
    with pytest.raises(ValueError, match="the prompt is empty"):
        engine.generate([[1], []], SamplingParams())
    assert not engine.has_unfinished
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    with pytest.raises(RuntimeError, match="other requests"):
        engine.generate([[1]], SamplingParams())


def test_generate_has_the_engine_to_itself():
    refused = []

    def come(ids):
        with pytest.raises(RuntimeError) as error:
            engine.add_request("foo", [1], SamplingParams(max_tokens=2))
        refused.append(str(error.value))
        with pytest.raises(RuntimeError, match="other requests"):
            engine.generate([[1]], SamplingParams(max_tokens=2))

    engine = LLMEngine(Hooked(come), **SMALL)
    [answer] = engine.generate([[1]], SamplingParams(max_tokens=2))
    assert answer.token_ids == alone([1], SamplingParams(max_tokens=2))
    assert refused == ["generate is answering other prompts; add requests when it has ended"] * 2
    engine.model.before = engine.runner.model.before = lambda ids: None
    engine.add_request("foo", [1], SamplingParams(max_tokens=2))
    assert tokens(drain(engine)["foo"]) == answer.token_ids


# Several answers, log-probabilities, end tokens.


def test_n_answers_share_the_prompt():
    engine = LLMEngine(MODEL, **SMALL | {"num_blocks": 40, "max_num_batched_tokens": 32})
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=5, n=4)
    prompt = list(range(14))
    engine.add_request("a", prompt, params)
    engine.step()
    assert engine.blocks.num_blocks - engine.blocks.num_free == 4, "four answers, and the blocks of one prompt"
    engine.step()
    assert engine.blocks.num_blocks - engine.blocks.num_free == 4 + 3, "each writes into its own copy of the last one"
    got = drain(engine)["a"]
    for k in range(4):
        mine = [output for output in got if output.index == k]
        assert tokens(mine) == alone(prompt, replace(params, seed=5 + k))[2:]
        assert [o.finish_reason for o in mine][-1] == "length"


def test_more_answers_than_places():
    engine = LLMEngine(MODEL, **SMALL | {"max_num_seqs": 2})
    params = SamplingParams(max_tokens=5, temperature=1.0, n=5)
    answers = engine.generate([[1, 2, 3, 4, 5]], params)
    assert [a.index for a in answers] == [0, 1, 2, 3, 4]
    assert [a.token_ids for a in answers] == [alone([1, 2, 3, 4, 5], replace(params, seed=k)) for k in range(5)]


@torch.inference_mode()
def test_logprobs_are_the_models_own():
    params = SamplingParams(max_tokens=5, temperature=2.0, seed=3, logprobs=4, repetition_penalty=1.2)
    [answer] = LLMEngine(MODEL, **SMALL).generate([[1, 2, 3]], params)
    ids = [1, 2, 3]
    for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        want = MODEL(torch.tensor([ids]))[0, -1].log_softmax(-1)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(want[token].item())
        assert [id for id, _ in entry.top] == want.topk(4).indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(want.topk(4).values.tolist())
        ids.append(token)
    [plain] = LLMEngine(MODEL, **SMALL).generate([[1, 2, 3]], replace(params, logprobs=None))
    assert plain.logprobs is None
    assert plain.token_ids == answer.token_ids
    [bare] = LLMEngine(MODEL, **SMALL).generate([[1, 2, 3]], replace(params, logprobs=0))
    assert [entry.top for entry in bare.logprobs] == [[]] * 5


def test_logprobs_leave_out_what_cannot_come_and_are_exact_in_16_bits():
    logits = torch.tensor([0.0, -torch.inf, 2.0, -torch.inf], dtype=torch.bfloat16)
    got = logprobs_of(logits, 2, SamplingParams(logprobs=3))
    want = torch.tensor([0.0, 2.0], dtype=torch.float64).log_softmax(-1).tolist()
    assert [id for id, _ in got.top] == [2, 0]
    assert [value for _, value in got.top] == pytest.approx(want[::-1], rel=1e-5)
    assert got.logprob == pytest.approx(want[1], rel=1e-5)


def test_an_end_token_ends_the_answer_and_is_its_last():
    params = SamplingParams(max_tokens=20, temperature=1.0)
    whole = alone([1, 2, 3], params)
    end = frozenset({whole[4]})
    [answer] = LLMEngine(MODEL, **SMALL, eos_ids=end).generate([[1, 2, 3]], params)
    assert (answer.token_ids, answer.finish_reason) == (whole[: whole.index(whole[4]) + 1], "stop")
    [answer] = LLMEngine(MODEL, **SMALL, eos_ids=end).generate([[1, 2, 3]], replace(params, ignore_eos=True))
    assert (answer.token_ids, answer.finish_reason) == (whole, "length")


# Text. A model that spells: after a prompt's last token it says the script, byte by byte.


class Speller(nn.Module):
    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self.config = replace(TINY, vocab_size=258, num_hidden_layers=1)
        self.script, self.n_prompt = script, 1

    def forward(self, ids, caches, positions, rows):
        nothing = torch.zeros(1, 2, ids.shape[1], 8)
        caches[0].attend(torch.zeros(1, 6, ids.shape[1], 8), nothing, nothing, 1.0)
        logits = torch.zeros(1, len(rows), 258)
        for k, row in enumerate(rows.tolist()):
            done = int(positions[row]) + 1 - self.n_prompt
            logits[0, k, self.script[done] if done < len(self.script) else EOS] = 9.0
        return logits


def spell(script: str | list[int], **params) -> list[RequestOutput]:
    ids = list(script.encode()) if isinstance(script, str) else script
    engine = LLMEngine(Speller(ids), ByteTokenizer(), num_blocks=16, attention="gather")
    engine.add_request("a", [65], SamplingParams(**params))
    return drain(engine)["a"]


def test_text_comes_in_whole_characters():
    outputs = spell("aé€!")
    assert [o.text for o in outputs] == ["a", "", "é", "", "", "€", "!", ""]
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].token_ids == [EOS]


def test_a_stop_text_over_several_tokens():
    outputs = spell("one STOP two", stop=("STOP",), max_tokens=50)
    assert "".join(o.text for o in outputs) == "one "
    assert [o.finish_reason for o in outputs[-2:]] == [None, "stop"]
    assert tokens(outputs) == list(b"one STOP"), "it ends with the token that completes it"
    outputs = spell("one STO", stop=("STOP",))
    assert "".join(o.text for o in outputs) == "one STO", "what was held back is sent when it can't become one"


def test_special_tokens_have_no_text():
    outputs = spell([97, SILENT, 98])
    assert "".join(o.text for o in outputs) == "ab"
    assert tokens(outputs) == [97, SILENT, 98, EOS]


def test_cut_at_its_limit():
    outputs = spell("a€", max_tokens=3)
    assert ("".join(o.text for o in outputs), outputs[-1].finish_reason) == ("a", "length")


def test_a_tokenizer_that_fails_fails_one_request():
    class Partial(ByteTokenizer):
        def token_bytes(self, id: int) -> bytes:
            if id == 66:
                raise KeyError("no such token")
            return super().token_bytes(id)

    engine = LLMEngine(Speller([66]), Partial(), num_blocks=16, attention="gather")
    engine.add_request("a", [65], SamplingParams())
    [failure] = drain(engine)["a"]
    assert isinstance(failure, GenerationError)
    assert "no such token" in str(failure)


def test_a_step_of_more_tokens_than_one_context():
    model = tiny_model(config=replace(TINY, max_position_embeddings=16))
    prompts = [[k, k + 1, k + 2, k + 3, k + 4] for k in range(8)]
    params = SamplingParams(max_tokens=4)
    answers = LLMEngine(model, block_size=4, attention="gather").generate(prompts, params)
    assert [a.token_ids for a in answers] == [alone(p, params, model) for p in prompts]
