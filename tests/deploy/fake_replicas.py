"""Replicas that a test can lose, a ReplicaSetEngine over them, and its answers read to the end."""

import asyncio

from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import RequestOutput
from shared.observability.trace import StepStats
from shared.serving.cluster.replica_engine import ReplicaSetEngine
from shared.serving.cluster.replicas import Piece, ReplicaLost
from shared.serving.engines.engine import EngineFailed, EngineLimits, limits_of
from tests.tiny import tiny_model

PROMPT = [5, 17, 3]
LIMITS = EngineLimits(64, 4, 64, 40, 16, 1024, 97, 256, "gather", "cpu", "float32", "v1")


def token(prompt_ids, seed, position):
    """What these replicas answer at a position: all of them the same, as real ones do."""
    return (sum(prompt_ids) + 31 * seed + 7 * position) % 97


def answer(prompt_ids, seed, n):
    return [token(prompt_ids, seed, position) for position in range(n)]


class FakeReplicas:
    """lives: for each request they are asked for, in turn, how many tokens come before the replica is lost; None: all.
    `asked`: those requests. `open`: how many streams are read now."""

    def __init__(self, lives=(), error=None):
        self.lives, self.error = list(lives), error
        self.asked, self.open, self.stopped = [], 0, False
        self.there: dict[str, list[StepStats]] = {"a": [], "b": []}
        self.gate = asyncio.Event()  # a stream waits for it before each token
        self.gate.set()

    def lose(self):
        """Let those that wait at the gate through, once."""
        self.gate.set()
        self.gate.clear()

    async def start(self):
        if self.error:
            raise EngineFailed(self.error)
        return LIMITS

    async def stop(self):
        self.stopped = True

    async def ask(self, request):
        self.asked.append(request)
        life = self.lives.pop(0) if self.lives else None
        self.open += 1
        try:
            made, n_prompt = list(request.output_ids), request.prompt_ids
            while len(made) < request.params.max_tokens:
                await self.gate.wait()
                await asyncio.sleep(0)
                if life is not None and len(made) - len(request.output_ids) >= life:
                    raise ReplicaLost("killed")
                made.append(token(n_prompt, request.params.seed, len(made)))
                reason = "length" if len(made) == request.params.max_tokens else None
                yield Piece(RequestOutput(f"<{made[-1]}>", [made[-1]], reason), 0.5, 2)
        finally:
            self.open -= 1

    async def steps(self):
        steps, self.there = self.there, {name: [] for name in self.there}
        return steps

    async def block_maps(self):
        return [b"\x01\x00", b"\xff"]


class TinyReplicas(FakeReplicas):
    """Each request has a real engine over a tiny model, anew, which is lost after `lives` tokens."""

    def engine(self):
        return LLMEngine(tiny_model(), num_blocks=40, attention="reference", max_num_seqs=4)

    async def start(self):
        return limits_of(self.engine(), "v1")

    async def ask(self, request):
        engine, life = self.engine(), self.lives.pop(0) if self.lives else 1000
        params, made = request.params, 0
        engine.add_request("it", request.prompt_ids, params, output_ids=request.output_ids)
        while engine.has_unfinished:
            for _, output in engine.step():
                if made == life:
                    raise ReplicaLost("killed")
                made += 1
                yield Piece(output)


def run(test, replicas, n=2):
    """Run a test of a started engine; afterwards nothing may be left of its requests."""

    async def whole():
        engine = ReplicaSetEngine(replicas, n)
        engine.events = []
        engine.on_event = lambda kind, text: engine.events.append(kind)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine), 20)
            assert not engine._requests
        finally:
            await engine.stop()
        await asyncio.sleep(0.01)
        assert replicas.open == 0
        assert replicas.stopped

    asyncio.run(whole())


async def read(outputs):
    """The tokens, texts and reasons of each answer."""
    tokens, texts, reasons = {}, {}, {}
    async for output in outputs:
        tokens.setdefault(output.index, []).extend(output.token_ids)
        texts[output.index] = texts.get(output.index, "") + output.text
        reasons[output.index] = output.finish_reason
    return tokens, texts, reasons
