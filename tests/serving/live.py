"""Servers for the tests: the real app in a real uvicorn on a real port, over a scripted or a tiny random model."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shared.data.chat import ChatTemplate
from shared.inference.async_engine import AsyncLLMEngine
from shared.inference.sampling import SamplingParams
from shared.observability.telemetry import Telemetry
from shared.serving.api.app import create_app
from shared.serving.engines.engine import ThreadEngine
from shared.serving.guard.keys import KeyRing
from shared.serving.guard.service import Service
from shared.serving.models.text_model import TextModel
from shared.serving.models.versions import Version, Versions
from shared.serving.run import Server, server_config
from shared.serving.settings import Settings
from tests.inference.scripted import ByteTokenizer, ScriptedModel, Turnstile
from tests.tiny import TINY, tiny_model

PATH = "/v1/chat/completions"
WARM_UP_STEPS = 0  # a scripted model isn't warmed up

# Short enough that a prompt's length is easy to work out by hand: "u:Hi\na:" for one message.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


class ByteChat(ByteTokenizer):
    """Enough of a tokenizer for the chat template."""

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        return list(text.encode())


class LiveService(Service):
    """A Service whose one version is there already: an engine in a thread, and the text side to it."""

    def __init__(self, engine: AsyncLLMEngine, text: TextModel, settings: Settings, **others) -> None:
        telemetry = others.pop("telemetry", None) or Telemetry(debug=settings.debug)
        super().__init__(Versions(self._make_engine, telemetry=telemetry), telemetry, settings, **others)
        self.engine, self.text = engine, text

    def _make_engine(self, path: Path, name: str):
        raise AssertionError("this server loads nothing")

    async def start(self) -> None:
        engine = ThreadEngine(self.engine, "v1")
        await engine.start()
        self.versions.add(Version("v1", self.text.name, Path("scripted"), engine, self.text))


def scripted(
    model: ScriptedModel, max_waiting: int = 16, defaults: SamplingParams | None = None,
    settings: dict | None = None, keys: KeyRing | None = None, telemetry: Telemetry | None = None, **engine,
) -> LiveService:  # fmt: skip
    """A service over a scripted model. settings: Settings' fields; engine: LLMEngine's settings."""
    tokenizer = ByteChat()
    engine = {"max_num_seqs": 8, "num_blocks": 200, "attention": "gather", "prefix_caching": False} | engine
    thread = AsyncLLMEngine(model, tokenizer, 64, **engine)
    text = TextModel("scripted", tokenizer, ChatTemplate(TEMPLATE), defaults or SamplingParams(max_tokens=50), 200)
    settings = {"grace": 0.2, "max_num_seqs": engine["max_num_seqs"]} | (settings or {})
    return LiveService(thread, text, Settings(max_waiting=max_waiting, **settings), keys=keys, telemetry=telemetry)


def write_tiny_model(folder: Path) -> Path:
    """A model directory like a real one: byte tokens and <|im_end|>, a template, random weights, sampling defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = replace(TINY, vocab_size=257)
    fields = {k: v for k, v in vars(config).items() if v is not None}
    write = {
        "config.json": {"model_type": "llama", "eos_token_id": 256, **fields},
        "tokenizer_config.json": {"chat_template": TEMPLATE},
        "generation_config.json": {"temperature": 1.3, "top_p": 0.9, "do_sample": True},
    }
    for name, content in write.items():
        (folder / name).write_text(json.dumps(content))
    save_file(tiny_model(config=config).state_dict(), str(folder / "model.safetensors"))
    return folder


@contextmanager
def serving(service: Service, wait: bool = True) -> Iterator[httpx.Client]:
    """The service's app served from a thread. Yields a client, with `service`, the running uvicorn as `server`, `port`,
    and `engine`: the AsyncLLMEngine behind a scripted one."""
    config = server_config(create_app(service), port=0, log_level="error")
    server = Server(config, service)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        client.server, client.service, client.port = server, service, port
        client.engine = getattr(service, "engine", None)
        if wait:
            until(lambda: client.get("/health/ready").status_code == 200)
        yield client
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not stop"


def until(condition, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def chat(text: str = "Hi", model: str = "scripted", **parameters) -> dict:
    return {"model": model, "messages": [{"role": "user", "content": text}], **parameters}


def events(lines) -> list[dict]:
    """The events of a stream, which must end with [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return [json.loads(piece) for piece in data[:-1]]


def hold(model: ScriptedModel, steps: int = 0) -> Turnstile:
    """From now on the model makes only the steps it is allowed."""
    model.before_step = turnstile = Turnstile(steps)
    return turnstile


def raw_request(client: httpx.Client, body: dict) -> socket.socket:
    """Send a request and return the open connection, to be closed as rudely as a test likes."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", client.port), timeout=20)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock
