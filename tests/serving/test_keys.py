"""Who may ask: keys and their limits, the operator's routes, servers for one computer; nothing secret in the log."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.observability.logs import configure
from shared.serving.__main__ import load_keys
from shared.serving.address import listen
from shared.serving.guard.keys import Key, KeyRing, hash_key
from shared.serving.guard.limits import duration
from shared.serving.settings import SettingError
from tests.serving.live import PATH, chat, events, hold, scripted, serving, until

ADMIN_ROUTES = ("/metrics", "/admin/versions", "/dashboard/state")
OPEN_ROUTES = ("/", "/dashboard", "/health/live", "/health/ready")


def key(text: str | bytes) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + (text.encode() if isinstance(text, str) else text)}


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# ---- keys


def test_with_keys_every_route_of_the_api_needs_one(model):
    keys = KeyRing([Key("one", hash_key("sésame")), Key("two", hash_key("open"))])
    with serving(scripted(model, keys=keys)) as client:
        wrong = ({}, key("no"), {"Authorization": b"Basic open"}, {"Authorization": b"open"}, {"X-API-Key": "open"})
        body = chat(max_tokens=1)
        for method, path, status in (
            ("GET", "/v1/models", 200),
            ("POST", PATH, 200),
            ("GET", "/v1/nowhere", 404),
            ("GET", "/nowhere", 404),
            ("POST", "/tokenize", 400),
        ):
            for headers in wrong:
                response = client.request(method, path, json=body, headers=headers)
                assert code(response) == (401, "invalid_api_key"), (path, headers)
                assert response.headers["www-authenticate"] == "Bearer"
            for right in (key("sésame"), key("open"), {"Authorization": b"bEaReR open"}):
                assert client.request(method, path, json=body, headers=right).status_code == status
        for path in OPEN_ROUTES:
            assert client.get(path).status_code == 200
    assert len(model.prompts) == 3


@pytest.mark.parametrize(
    ("keys", "local_only", "given", "status"),
    [
        ([], True, "", 200),  # a server for this computer alone
        ([], False, "", 403),
        ([Key("me", hash_key("mine"))], False, "mine", 403),  # nobody is the operator
        ([Key("me", hash_key("mine")), Key("op", hash_key("op"), admin=True)], False, "mine", 401),
        ([Key("me", hash_key("mine")), Key("op", hash_key("op"), admin=True)], False, "", 401),
        ([Key("me", hash_key("mine")), Key("op", hash_key("op"), admin=True)], False, "op", 200),
        ([Key("op", hash_key("op"), admin=True)], True, "", 401),
        ([Key("op", hash_key("op"), admin=True)], True, "op", 200),
    ],
)
def test_who_sees_the_operators_routes(model, keys, local_only, given, status):
    with serving(scripted(model, keys=KeyRing(keys), settings={"local_only": local_only})) as client:
        for path in ADMIN_ROUTES:
            response = client.get(path, headers=key(given) if given else {})
            assert response.status_code == status, path
            if status == 403:
                assert "ADMIN_KEY" in response.json()["error"]["message"]
        for path in OPEN_ROUTES:
            assert client.get(path).status_code == 200
        if given == "op" and len(keys) > 1:
            assert client.get("/v1/models", headers=key("op")).status_code == 401  # it is for the operator's routes


def test_other_sites_may_not_use_a_local_server(model):
    with serving(scripted(model, settings={"local_only": True})) as client:
        own = f"127.0.0.1:{client.port}"
        for host in (own, "localhost", f"LOCALHOST:{client.port}", "[::1]:80", "127.0.0.1"):
            assert client.get("/health/live", headers={"Host": host}).status_code == 200
        for host in (
            "evil.example",
            f"evil.example:{client.port}",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "8.8.8.8",
        ):
            assert code(client.get("/v1/models", headers={"Host": host})) == (403, "forbidden_host")
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            for method, path in (("POST", PATH), ("PUT", "/admin/versions"), ("DELETE", "/admin/versions/v1")):
                refused = client.request(method, path, json=chat(), headers={"Origin": origin})
                assert code(refused) == (403, "forbidden_origin")
        assert client.post(PATH, json=chat(), headers={"Origin": f"http://{own}"}).status_code == 200
    assert len(model.prompts) == 1


# ---- limits of a key


def test_requests_per_minute_with_openais_headers(model):
    keys = KeyRing([Key("few", hash_key("few"), requests_per_minute=3), Key("many", hash_key("many"))])
    with serving(scripted(model, keys=keys)) as client:
        for left in (2, 1, 0):
            response = client.get("/v1/models", headers=key("few"))
            assert response.status_code == 200
            assert response.headers["x-ratelimit-limit-requests"] == "3"
            assert response.headers["x-ratelimit-remaining-requests"] == str(left)
            assert response.headers["x-ratelimit-reset-requests"].endswith("s")
        for path in ("/v1/models", "/v1/nowhere"):
            refused = client.get(path, headers=key("few"))
            assert code(refused) == (429, "rate_limit_exceeded")
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert 15 <= int(refused.headers["retry-after"]) <= 20  # one comes back every 20 s
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        free = client.get("/v1/models", headers=key("many"))
        assert free.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in free.headers)
        metrics = client.service.telemetry.exposition()[0].decode()
        assert 'llm_refusals_total{reason="rate_limit_exceeded"} 2.0' in metrics


def test_tokens_per_minute_are_what_was_used(model):
    keys = KeyRing([Key("few", hash_key("few"), tokens_per_minute=100)])
    prompt = len("u:Hi\na:")
    with serving(scripted(model, keys=keys)) as client:
        for stream in (False, True):
            response = client.post(PATH, json=chat(max_tokens=5, stream=stream), headers=key("few"))
            assert response.status_code == 200
        response = client.get("/v1/models", headers=key("few"))
        left = int(response.headers["x-ratelimit-remaining-tokens"])
        assert 100 - 2 * (prompt + 5) - 1 <= left <= 100 - 2 * (prompt + 5) + 2
        refused = client.post(PATH, json=chat(max_tokens=90), headers=key("few"))
        assert code(refused) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert code(client.post(PATH, json=chat(max_tokens=100), headers=key("few"))) == (400, "request_too_large")


def test_how_long_a_limit_takes_to_come_back_is_written():
    written = {0.0: "0ms", 0.0201: "21ms", 1: "1s", 1.5: "1.5s", 59.25: "59.25s", 66: "1m6s", 3600: "60m0s",
               0.9999: "1s", 59.9999: "1m0s", 119.95: "1m59.95s", 119.9999: "2m0s"}  # fmt: skip
    assert {seconds: duration(seconds) for seconds in written} == written


def test_one_callers_flood_leaves_room_for_another(model):
    keys = KeyRing([Key("greedy", hash_key("greedy")), Key("bob", hash_key("bob"))])
    with serving(scripted(model, max_waiting=4, max_num_seqs=1, keys=keys)) as client, ThreadPoolExecutor(40) as pool:
        turnstile = hold(model)
        ask = lambda who: client.post(PATH, json=chat(max_tokens=1), headers=key(who)).status_code  # noqa: E731
        flood = [pool.submit(ask, "greedy") for _ in range(30)]
        until(lambda: sum(answer.done() for answer in flood) == 25)  # one runs, four wait
        bob = pool.submit(ask, "bob")
        until(lambda: sum(answer.done() for answer in flood) == 26)  # the last of the four gave way
        turnstile.allow(2)  # the one that runs, and then it is bob's turn or the greedy one's
        until(lambda: model.steps == 3)
        turnstile.allow(1)
        assert bob.result() == 200
        turnstile.allow(100)
        assert sorted(answer.result() for answer in flood) == [200] * 4 + [429] * 26


# ---- secrets


def test_neither_keys_nor_texts_are_in_the_log(model, tmp_path, capfd, monkeypatch):
    marker, file = "a-text-nobody-may-see", tmp_path / "log"
    keys = KeyRing([Key("me", hash_key("my-secret-key")), Key("op", hash_key("the-admin-key"), admin=True)])
    stop = configure("json", file)
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    for ours in ("httpx", "httpcore"):  # the caller's, in the same process
        monkeypatch.setattr(logging.getLogger(ours), "level", logging.CRITICAL)
    try:
        with serving(scripted(model, keys=keys, settings={"debug": True})) as client:
            for given in ("my-secret-key", "the-wrong-key"):
                for body in (
                    chat(marker),
                    chat(marker, stream=True, max_tokens=3),
                    chat(marker, seed=marker),
                    chat(marker, model=marker),
                    chat(marker * 20),
                    {marker: marker},
                    {"model": "scripted", "prompt": marker},
                ):
                    for path in (PATH, "/v1/completions", "/tokenize"):
                        client.post(path, json=body, headers=key(given))
            client.get(f"/{marker}?key={marker}", headers=key("my-secret-key"))
            client.get("/metrics", headers=key("the-admin-key"))
            client.service.text.encode_chat = lambda *_: {}["a bug"]
            assert client.post(PATH, json=chat(marker), headers=key("my-secret-key")).status_code == 500
            told = json.dumps(client.get("/dashboard/state", headers=key("the-admin-key")).json())
            told += client.get("/metrics", headers=key("the-admin-key")).text
    finally:
        stop()
    told += file.read_text() + "".join(capfd.readouterr())
    assert '"status": 200' in told.replace('":2', '": 2')
    assert "a bug" in told
    for secret in (marker, "my-secret-key", "the-wrong-key", "the-admin-key", hash_key("my-secret-key")):
        assert secret not in told


# ---- the command's options


def test_a_public_address_needs_a_callers_key():
    for has_key in (False, True):
        if has_key:
            listen("0.0.0.0", 0, has_key).close()
        else:
            with pytest.raises(SettingError, match="API_KEY="):
                listen("0.0.0.0", 0, has_key)
    listen("127.0.0.1", 0, False).close()
    only_admin = load_keys(None, None, "the-operators")
    assert [key.admin for key in only_admin.keys] == [True]


def test_keys_of_the_options(tmp_path, capsys):
    file = tmp_path / "keys"
    file.write_text(json.dumps({"name": "alice", "sha256": hash_key("a"), "requests_per_minute": 60}) + "\n")
    ring = load_keys(file, "b", "c")
    assert [ring.find(text).name for text in "abc"] == ["alice", "default", "admin"]
    assert ring.find("d") is None
    file.write_text('\n{"name": "alice", "key": "hush-hush"}\n')
    nobodys = [tmp_path / name for name in ("empty", "comments", "operators")]
    operator = json.dumps({"name": "op", "sha256": hash_key("o"), "admin": True})
    for path, text in zip(nobodys, ("", "# none\n\n", operator), strict=True):
        path.write_text(text)
    assert len(load_keys(nobodys[-1], "callers", None).keys) == 2
    for path, api_key, told in (
        (file, None, f"{file}, line 2"),
        (tmp_path / "none", None, "can't be read"),
        (None, "with a space", "no spaces"),
        (None, "same", "twice"),
        *((path, None, "no caller's key") for path in nobodys),
    ):
        with pytest.raises(SystemExit):
            load_keys(path, api_key, "same")
        error = capsys.readouterr().err
        assert told in error
        assert "hush-hush" not in error


def test_the_key_of_a_stream_is_checked_before_it_begins(model):
    with serving(scripted(model, keys=KeyRing([Key("me", hash_key("mine"))]))) as client:
        with client.stream("POST", PATH, json=chat(stream=True), headers=key("no")) as response:
            assert response.status_code == 401
        with client.stream("POST", PATH, json=chat(stream=True, max_tokens=2), headers=key("mine")) as response:
            assert len(events(response.iter_lines())) >= 2
