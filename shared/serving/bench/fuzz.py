"""Requests that no client of good will would send, as raw bytes: endless, and the same for the same seed.

All of them are whole, as far as one can say that of them: a server can answer each at once, and none asks for more than
a few tokens. `unfinished` has those whose end never comes.
"""

import json
import random
from collections.abc import Callable, Iterator

HOST = b"Host: localhost\r\nConnection: close\r\n"
DEEP = 200

# Values, as they stand in JSON: some are fine in one place and wrong in another, and some are no JSON at all.
VALUES = [
    "null", "true", "false", "0", "-1", "1", "2", "0.5", "-0.0", "1e400", "-1e400", "NaN", "Infinity", "-Infinity",
    "1e-320", f"1{'0' * 400}", f"-1{'0' * 5000}", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", '""', '"x"', '"5"', '"NaN"', '"true"', r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"',
    r'"\uD83D\uDE00"', '"😀\u2028\ufeff"', f'"{"x" * 5000}"', '"<|im_end|>"', '"../../etc/passwd"', '"%s%n{0}"',
    "[]", "[[]]", "[null]", "[0.1]", "[-1]", "[256]", "[1e30]", "[[0]]", '["a", 1]', '["", ""]', f"[{'1, ' * 500}1]",
    "{}", '{"a": 1}', '{"": ""}', '{"type": "text"}', '{"include_usage": true}', '{"role": "user", "content": "x"}',
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP,
    "'single'", "undefined", "0x10", "01", "1.", ".5", "+1", "1e", '"never ends', "{,}", "[1,]", "", "// a comment",
]  # fmt: skip
# For what says how much work there will be, and how soon it has to be done, only what is refused or little.
SMALL = ["0", "-1", "1", "2", "0.5", "true", '"5"', "[]", "{}", "NaN", "1e400", f"1{'0' * 400}", '""', "1."]
OWN_VALUES = {"max_tokens": SMALL, "max_completion_tokens": SMALL, "timeout": ["0", "-1", "NaN", '"5"', "[]", "1e400"]}

MESSAGES = [
    '[{"role": "user", "content": "Hi"}]',
    '[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]',
    '[{"role": "user", "content": "a"}, {"role": "assistant", "content": null}, {"role": "user", "content": "b"}]',
    '[{"role": "system", "content": ""}, {"role": "user", "content": "\\u0000 <|im_start|>system"}]',
    '[{"role": "tool", "content": "x", "tool_call_id": "1"}]',
    '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://localhost/x"}}]}]',
    '[{"role": "user", "content": [{"type": "text"}]}]',
    '[{"role": "user"}]',
    "[" + ", ".join(['{"role": "user", "content": "x"}'] * 60) + "]",
]
SAMPLING = {
    "max_tokens": "2", "temperature": "0.7", "top_p": "0.9", "top_k": "5", "min_p": "0.1", "repetition_penalty": "1.1",
    "seed": "7", "stop": '["x", "\\n"]', "n": "2", "stream": "true", "stream_options": '{"include_usage": true}',
    "user": '"me"', "ignore_eos": "true", "presence_penalty": "0", "frequency_penalty": "0", "logit_bias": "{}",
}  # fmt: skip
CHAT = SAMPLING | {
    "logprobs": "true", "top_logprobs": "3", "max_completion_tokens": "2", "metadata": '{"a": "b"}', "store": "false",
    "response_format": '{"type": "text"}', "tools": "[]", "tool_choice": '"none"', "reasoning_effort": "null",
}  # fmt: skip
COMPLETION = SAMPLING | {"logprobs": "2", "echo": "true", "best_of": "1", "suffix": '""'}
PROMPTS = ['"Hi"', '["Hi", "there"]', "[1, 2, 3]", "[[1], [2, 3]]", '[""]', "[[]]", '["a", [1]]', "[-1]", "[999999999]"]


def requests(seed: int, model: str) -> Iterator[bytes]:
    """Whole requests, without end."""
    rng = random.Random(seed)
    kinds = [_odd_body] * 12 + [_broken_body] * 4 + [_odd_head] * 3 + [_odd_path] * 2 + [_odd_frame]
    while True:
        yield rng.choice(kinds)(rng, model)


def unfinished(seed: int, model: str) -> Iterator[bytes]:
    """Beginnings of requests, without end: the rest never comes."""
    rng = random.Random(seed)
    while True:
        whole = _odd_body(rng, model)
        yield whole[: rng.randrange(1, len(whole))]


def _post(path: str, body: bytes, head: bytes = b"Content-Type: application/json\r\n") -> bytes:
    return b"POST %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (path.encode(), HOST, head, len(body), body)


def _odd_body(rng: random.Random, model: str) -> bytes:
    """JSON, or nearly: a good body in which a few things are not as they should be."""
    path, fields = _good(rng, model)
    for _ in range(rng.randint(0, 3)):
        name = rng.choice([*fields, *CHAT, "modle", "", "\\u0000", "__proto__"])
        fields[name] = rng.choice(OWN_VALUES.get(name, VALUES))
    if rng.random() < 0.1:
        fields.pop(rng.choice([name for name in fields if name not in OWN_VALUES]), None)
    pairs = [f'"{name}": {value}' for name, value in fields.items()]
    if rng.random() < 0.1:
        name = rng.choice(list(fields))
        pairs.append(f'"{name}": {rng.choice(OWN_VALUES.get(name, VALUES))}')  # a second time
    rng.shuffle(pairs)
    return _post(path, ("{" + ", ".join(pairs) + "}").encode())


def _good(rng: random.Random, model: str) -> tuple[str, dict[str, str]]:
    """A path, and the fields of a body for it that is mostly fine."""
    fields = {"model": json.dumps(model)}
    kind = rng.choice(["chat"] * 5 + ["completion"] * 4 + ["tokenize", "detokenize", "admin"])
    if kind == "tokenize":
        return "/tokenize", fields | rng.choice([{"prompt": '"Hi"'}, {"messages": rng.choice(MESSAGES)}])
    if kind == "detokenize":
        return "/detokenize", fields | {"tokens": rng.choice(["[1, 2]", "[]", "[999999999]", "[-1]"])}
    if kind == "admin":  # nothing that would change anything
        action = rng.choice(["shift", "promote", "rollback"])
        return f"/admin/versions/{action}", {"shares": '{"none": 1}', "name": '"none"', "model": '"none"'}
    extras, own = (
        (CHAT, {"messages": rng.choice(MESSAGES)}) if kind == "chat" else (COMPLETION, {"prompt": rng.choice(PROMPTS)})
    )
    chosen = {name: extras[name] for name in rng.sample(list(extras), rng.randint(0, 4))}
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    return path, fields | own | chosen | {"max_tokens": "2"}


def _broken_body(rng: random.Random, model: str) -> bytes:
    """Bytes that were JSON once, or never."""
    path, fields = _good(rng, model)
    body = ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()
    at = rng.randrange(len(body))
    breaks: list[Callable[[], bytes]] = [
        lambda: body[:at],
        lambda: body[:at] + rng.randbytes(rng.randint(1, 8)) + body[at:],
        lambda: body[:at] + bytes([body[at] ^ (1 << rng.randrange(8))]) + body[at + 1 :],
        lambda: b"\xef\xbb\xbf" + body,
        lambda: body.decode().encode(rng.choice(["utf-16", "utf-32", "utf-7"])),
        lambda: body + rng.choice([b"}", b"\x00", b"\n" * 1000, body]),
        lambda: rng.choice([b"[", b"{", b'{"a":', b'[{"a":']) * rng.choice([1, 1000, 40_000]),
        lambda: rng.choice([b"", b" ", b"null", b"[]", b'"x"', b"5", b"\xff\xfe", b"--\r\n", b"model=x&messages=y"]),
        lambda: rng.randbytes(rng.randint(1, 2000)),
        lambda: b'{"model": "' + b"x" * 100_000 + b'"}',
        lambda: b" " * (2**18 + rng.randint(-1, 1)),
        lambda: b'{"%s": 0}' % b'": 0, "'.join(b"a%d" % i for i in range(2000)),
    ]
    return _post(path, rng.choice(breaks)())


def _odd_head(rng: random.Random, model: str) -> bytes:
    """A good body behind headers that are strange, or forbidden."""
    body = b'{"model": %s, "prompt": "Hi", "max_tokens": 1}' % json.dumps(model).encode()
    head = rng.choice([
        b"Content-Type: text/plain\r\n", b"Content-Type: multipart/form-data\r\n", b"Content-Type: \r\n",
        b"Content-Type: application/json; charset=utf-16\r\n", b"Content-Encoding: gzip\r\n",
        b"Accept: application/msgpack\r\n", b"Accept: ,;q=,*/*;q=nan\r\n", b"Accept: " + b"x," * 5000 + b"\r\n",
        b"X-Request-ID: a\tb\r\n", b"X-Request-ID: " + b"x" * 2000 + b"\r\n", b"X-Request-ID: \xff\xfe<script>\r\n",
        b"Authorization: Bearer \xff\xfe\r\n", b"Authorization: Basic Og==\r\n", b"Authorization: Bearer\r\n",
        b"Origin: http://evil.example\r\n", b"Origin: null\r\n", b"Host: evil.example\r\n",
        b"Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: evil\r\n",
        b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Upgrade: h2c\r\n",
        b"X-Long: " + b"y" * 30_000 + b"\r\n", b"X-Long: " + b"y" * 100_000 + b"\r\n", b"X: y\r\n" * 500,
        b"Folded: a\r\n b\r\n", b"No colon\r\n", b": no name\r\n", b"Bad name: x\r\n", b"X: \x00\r\n", b"X: a\rb\r\n",
        b"Cookie: " + b"a=b; " * 500 + b"\r\n", b"Range: bytes=0-1\r\n", b"TE: trailers\r\n",
    ])  # fmt: skip
    return _post("/v1/completions", body, head)


def _odd_path(rng: random.Random, model: str) -> bytes:
    """Methods and addresses; of the operator's only what reads."""
    method = rng.choice(
        [b"GET", b"GET", b"GET", b"HEAD", b"PUT", b"OPTIONS", b"TRACE", b"PATCH", b"get", b"FOO", b"CONNECT"]
    )
    path = rng.choice([
        b"/", b"/dashboard", b"/dashboard/state", b"/dashboard/traces", b"/metrics", b"/health/live", b"/health/ready",
        b"/v1/models", b"/v1/models/", b"/v1/models/none", b"/v1/models/%00", b"/v1/models/%ff%fe", b"/v1/models/../..",
        b"/v1/models/" + model.encode(), b"/v1/models/" + b"x" * 5000, b"/v1/chat/completions", b"/v1/completions/",
        b"/v1/embeddings", b"/admin", b"/admin/versions", b"/admin/versions/none", b"/admin/versions/%2e%2e",
        b"/static/", b"/static/../settings.py", b"/static/..%2f..%2fapp.py", b"/static/%2e%2e/app.py", b"/static/%00",
        b"//", b"/%", b"/%zz", b"/?" + b"a=b&" * 1000, b"/openapi.json", b"/docs", b"*", b"http://localhost/v1/models",
        b"http://evil.example/", b"/\xff", b"/ /", b"/\x00", b"", b"/v1/models?x=%00#y",
    ])  # fmt: skip
    version = rng.choice(
        [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b""]
    )
    return b"%s %s %s\r\n%s\r\n" % (method, path, version, HOST)


def _odd_frame(rng: random.Random, model: str) -> bytes:
    """Bodies whose length is told in an odd way, or in two."""
    body = b'{"model": %s, "prompt": "Hi", "max_tokens": 1}' % json.dumps(model).encode()
    chunked, size = b"Transfer-Encoding: chunked\r\n", b"%x\r\n" % len(body)
    one_byte_each = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    head, rest = rng.choice([
        (chunked, size + body + b"\r\n0\r\n\r\n"),
        (chunked, one_byte_each + b"0\r\n\r\n"),
        (chunked, size[:-2] + b";name=value\r\n" + body + b"\r\n0\r\nTrailer: x\r\n\r\n"),
        (chunked, b"zz\r\n" + body + b"\r\n0\r\n\r\n"),
        (chunked, b"-5\r\n" + body + b"\r\n0\r\n\r\n"),
        (chunked, b"fffffffffffffffffffff\r\n" + body),
        (chunked, size + body + b"no line end"),
        (chunked + b"Content-Length: 3\r\n", size + body + b"\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked\r\n", size + body + b"\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: identity\r\n", body),
        (b"Content-Length: %d\r\nContent-Length: %d\r\n" % (len(body), len(body) + 1), body),
        (b"Content-Length: %d\r\nContent-Length: %d\r\n" % (len(body), len(body)), body),
        (b"Content-Length: -1\r\n", body),
        (b"Content-Length: +%d\r\n" % len(body), body),
        (b"Content-Length: 0x%x\r\n" % len(body), body),
        (b"Content-Length: %d, %d\r\n" % (len(body), len(body)), body),
        (b"Content-Length: 1e2\r\n", body),
        (b"Content-Length: 99999999999999999999999\r\n", body),
        (b"Content-Length: 99999999999\r\n", body),
        (b"Content-Length: 5\r\n", body),  # what follows is no request
        (b"", body),
    ])  # fmt: skip
    return b"POST /v1/completions HTTP/1.1\r\n%sContent-Type: application/json\r\n%s\r\n%s" % (HOST, head, rest)
