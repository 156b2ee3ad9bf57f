"""Versions over scripted models: what each of them answers is told by its name."""

import asyncio
import json
from pathlib import Path

import pytest

from shared.data.chat import ChatTemplate
from shared.inference.async_engine import AsyncLLMEngine
from shared.inference.sampling import SamplingParams
from shared.serving.engines.engine import ThreadEngine
from shared.serving.errors import ApiError
from shared.serving.models.text_model import TextModel
from shared.serving.models.versions import Versions
from tests.inference.scripted import EOS, ByteTokenizer, ScriptedModel

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
MODEL = "scripted"


class Bytes(ByteTokenizer):
    def encode(self, text, allow_special=False):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()


class Events:
    """Telemetry that remembers."""

    def __init__(self):
        self.kinds, self.texts, self.steps = [], [], []

    def event(self, kind, text, **fields):
        self.kinds.append(kind)
        self.texts.append(text)

    def step(self, model, version, stats):
        self.steps.append((model, version))


class Bench:
    """Versions over scripted models: `scripts` says what each version answers, `models` has the models it made."""

    def __init__(self, scripts=None, gate=None, context=400):
        self.scripts, self.models, self.telemetry, self.context = scripts or {}, {}, Events(), context
        self.versions = Versions(self.make_engine, self.text, self.telemetry, gate or _even)

    def make_engine(self, path, name):
        model = self.models[name] = ScriptedModel(self.scripts.get(name, "yes"), self.context)
        settings = {"max_num_seqs": 8, "num_blocks": 400, "attention": "gather", "prefix_caching": False}
        return ThreadEngine(AsyncLLMEngine(model, Bytes(), 64, **settings), name)

    def text(self, path, name):
        return TextModel(name, Bytes(), ChatTemplate(TEMPLATE), SamplingParams(max_tokens=50))

    async def load(self, name=None, **more):
        version = self.versions.load(Path("folder"), more.pop("model", MODEL), name, **more)
        await version.settled
        return version


async def _even(candidate, baseline):
    return {"baseline": baseline.name, "reasons": []}


def cases(folder: Path, n=12) -> Path:
    file = folder / "cases.jsonl"
    lines = [
        {"id": f"case-{i}", "messages": [{"role": "user", "content": f"question {i}"}], "max_tokens": 8,
         "tags": ["quick"], "expect": {"contains": ["yes"]}}
        for i in range(n)
    ]  # fmt: skip
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


def run(test, *arguments, **settings):
    """Run an async test with a bench, and stop its engines."""

    async def main():
        bench = Bench(*arguments, **settings)
        try:
            await asyncio.wait_for(test(bench), 20)
        finally:
            await bench.versions.stop()

    asyncio.run(main())


def refusal(work, *arguments, **more) -> ApiError:
    with pytest.raises(ApiError) as info:
        work(*arguments, **more)
    return info.value


async def answer(version, prompt="Hi", request_id="r"):
    ids = [
        token
        async for output in version.engine.generate(list(prompt.encode()), SamplingParams(max_tokens=50), request_id)
        for token in output.token_ids
    ]
    return bytes(token for token in ids if token != EOS).decode()
