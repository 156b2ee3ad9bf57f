"""/admin/versions over HTTP: what the operator sends, what comes back, and what nobody else may send."""

import threading

import pytest

from shared.observability.telemetry import Telemetry
from shared.serving.guard.keys import Key, KeyRing, hash_key
from shared.serving.guard.service import Service
from shared.serving.models.promotion import RegressionGate
from shared.serving.settings import Settings
from tests.inference.scripted import Turnstile
from tests.serving.live import PATH, chat, events, serving, until
from tests.serving.scripted_versions import Bench, cases

VERSIONS = "/admin/versions"


@pytest.fixture
def bench():
    return Bench({"v1": "one", "v2": "two"})


@pytest.fixture
def server(bench, folder):
    with serving(service(bench, folder)) as client:
        yield client


def service(bench, folder, **more) -> Service:
    telemetry = Telemetry()
    bench.versions._telemetry = telemetry
    return Service(bench.versions, telemetry, Settings(model=folder, grace=0.2, local_only="keys" not in more), **more)


def listed(client) -> dict[str, dict]:
    return {version["name"]: version for version in client.get(VERSIONS).json()["data"]}


def says(client, model="tiny", **more) -> str:
    answer = client.post(PATH, json=chat(model=model, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def error_of(answer, status) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_load_shift_promote_roll_back_unload(server, folder):
    answer = server.post(f"{VERSIONS}/load", json={"path": str(folder), "model": "tiny"})
    assert answer.status_code == 202
    assert (answer.json()["name"], answer.json()["share"]) == ("v2", 0)
    until(lambda: listed(server)["v2"]["state"] == "ready")
    assert says(server) == "one"
    assert says(server, "tiny@v2") == "two"
    answer = server.post(f"{VERSIONS}/shift", json={"shares": {"v1": 0.5, "v2": 0.5}})
    assert [version["share"] for version in answer.json()["data"]] == [0.5, 0.5]
    assert {says(server) for _ in range(40)} == {"one", "two"}
    server.post(f"{VERSIONS}/promote", json={"name": "v2"})
    assert says(server) == "two"
    assert error_of(server.delete(f"{VERSIONS}/v2"), 409)["code"] == "version_serves"
    assert server.post(f"{VERSIONS}/rollback").status_code == 200
    assert server.post(f"{VERSIONS}/rollback", json={"model": "tiny"}).status_code == 200
    assert says(server) == "one"
    assert error_of(server.post(f"{VERSIONS}/rollback"), 409)["code"] == "nothing_to_roll_back"
    assert server.delete(f"{VERSIONS}/v2").status_code == 202
    until(lambda: "v2" not in listed(server))
    error_of(server.get(f"{VERSIONS}/v2"), 404)
    error_of(server.post(PATH, json=chat(model="tiny@v2")), 404)
    events = server.service.telemetry.snapshot()["events"]
    kinds = [event["kind"] for event in events]
    back = [event["text"] for event in events if event["kind"] == "traffic_rolled_back"]
    assert back[-1].endswith(": back to v1: 100% of the requests")
    told = ("version_loading", "version_ready", "traffic_shifted", "version_promoted", "traffic_rolled_back",
            "version_unloading", "version_unloaded")  # fmt: skip
    assert not set(told) - set(kinds)


def test_what_is_said_of_a_version(server, folder):
    says(server, max_tokens=2)
    until(lambda: listed(server)["v1"]["requests"]["open"] == 0)
    version = server.get(f"{VERSIONS}/v1").json()
    assert version == listed(server)["v1"]
    assert (version["model"], version["id"], version["path"]) == ("tiny", "tiny@v1", str(folder))
    assert (version["state"], version["engine"], version["share"], version["error"]) == ("ready", "ready", 1, "")
    assert version["requests"] == {"open": 0, "total": 1}
    assert version["output_tokens"] == 2
    weights = (folder / "model.safetensors").stat().st_size / 1e6
    assert version["memory"]["weights_mb"] == pytest.approx(weights, abs=0.1)
    limits = version["limits"]
    pool = server.service.versions.get("v1").engine.engine.engine.pool
    assert version["memory"]["kv_mb"] == pytest.approx(pool.nbytes / 1e6, abs=0.1)
    assert (limits["num_blocks"], limits["max_num_seqs"]) == (400, 8)
    assert version["warm_up"]["first_s"] > 0


def test_the_list_of_models_has_the_versions(server, folder):
    server.post(f"{VERSIONS}/load", json={"path": str(folder), "model": "tiny", "wait": True})
    server.post(f"{VERSIONS}/load", json={"path": str(folder), "model": "other", "name": "small", "wait": True})
    ids = [model["id"] for model in server.get("/v1/models").json()["data"]]
    assert ids == ["tiny", "other", "tiny@v1", "tiny@v2", "other@small"]
    assert server.get("/v1/models/tiny@v2").json()["id"] == "tiny@v2"
    assert says(server, "other") == "yes"


def test_a_version_that_answers_worse_is_told_and_stays_out(folder, tmp_path):
    bench = Bench({"v1": "yes", "v2": "no"}, RegressionGate(cases(tmp_path)))
    with serving(service(bench, folder)) as client:
        answer = client.post(f"{VERSIONS}/load", json={"path": str(folder), "wait": True})
        error = error_of(answer, 409)
        assert error["code"] == "version_rejected"
        assert "case-3" in error["message"]
        version = client.get(f"{VERSIONS}/v2").json()
        assert version["state"] == "rejected"
        assert version["gate"]["newly_failing"][3]["candidate"] == "no"
        assert "case-3" in error_of(client.post(f"{VERSIONS}/promote", json={"name": "v2"}), 409)["message"]
        error_of(client.post(f"{VERSIONS}/shift", json={"shares": {"v2": 1}}), 409)
        assert says(client) == "yes"
        assert client.post(f"{VERSIONS}/promote", json={"name": "v2", "force": True}).status_code == 200
        assert says(client) == "no"


@pytest.mark.parametrize(
    ("route", "body", "status", "param"),
    [
        ("load", {}, 400, "path"),
        ("load", {"path": ""}, 400, "path"),
        ("load", {"path": 5}, 400, "path"),
        ("load", {"path": "no/such/folder"}, 400, "path"),
        ("load", {"path": "~nosuchuser/x"}, 400, "path"),
        ("load", {"path": "x" * 4000}, 400, "path"),
        ("load", {"path": "a\0b"}, 400, "path"),
        ("load", {"path": "FOLDER", "name": "a b"}, 400, "name"),
        ("load", {"path": "FOLDER", "name": "v1"}, 409, "name"),
        ("load", {"path": "FOLDER", "model": "a@b"}, 400, "model"),
        ("load", {"path": "FOLDER", "gate": "off"}, 400, "gate"),
        ("load", {"path": "FOLDER", "promote": True}, 400, "promote"),
        ("shift", {"shares": {"v1": 0.5}}, 400, "shares"),
        ("shift", {"shares": {}}, 400, "shares"),
        ("shift", {"shares": {"v1": "all"}}, 400, "shares.v1"),
        ("shift", {"shares": {"v9": 1}}, 404, None),
        ("promote", {"name": "v9"}, 404, None),
        ("promote", {}, 400, "name"),
        ("rollback", {"model": "none"}, 404, "model"),
        ("rollback", {"force": True}, 400, "force"),
    ],
)
def test_what_is_wrong_is_named(server, folder, route, body, status, param):
    if body.get("path") == "FOLDER":
        body = body | {"path": str(folder)}
    assert error_of(server.post(f"{VERSIONS}/{route}", json=body), status)["param"] == param
    assert set(listed(server)) == {"v1"}


def test_bodies_that_are_no_json(server):
    for body in (b"", b"{", b"[]", b"\xff", b'{"name": NaN}'):
        error_of(server.post(f"{VERSIONS}/promote", content=body), 400)
    error_of(server.post(f"{VERSIONS}/promote", content=b" " * 2**15), 413)


def test_only_the_operator_may_load(bench, folder):
    keys = KeyRing([Key("ann", hash_key("sk-ann")), Key("operator", hash_key("sk-op"), admin=True)])
    with serving(service(bench, folder, keys=keys)) as client:
        asks = [("GET", ""), ("POST", "/load"), ("POST", "/shift"), ("POST", "/promote"), ("POST", "/rollback"),
                ("DELETE", "/v1"), ("GET", "/v1")]  # fmt: skip
        for method, route in asks:
            for key in (None, "sk-ann", "sk-wrong"):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                answer = client.request(method, VERSIONS + route, headers=headers, json={"path": str(folder)})
                assert answer.status_code in (401, 403), (method, route, key)
        headers = {"Authorization": "Bearer sk-op"}
        assert client.get(VERSIONS, headers=headers).status_code == 200
        body = {"path": str(folder), "wait": True}
        assert client.post(f"{VERSIONS}/load", headers=headers, json=body).status_code == 200


def test_a_stream_goes_on_in_the_version_it_began_in(folder):
    bench = Bench({"v1": "abcdef", "v2": "uvwxyz"})
    with serving(service(bench, folder)) as client:
        client.post(f"{VERSIONS}/load", json={"path": str(folder), "wait": True})
        turnstile = bench.models["v1"].before_step = Turnstile(2)
        got = []

        def read():
            with client.stream("POST", PATH, json=chat(model="tiny", stream=True)) as answer:
                got.extend(events(answer.iter_lines()))

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: listed(client)["v1"]["requests"]["open"] == 1)
        client.post(f"{VERSIONS}/promote", json={"name": "v2"})
        client.delete(f"{VERSIONS}/v1")
        assert says(client) == "uvwxyz"
        assert listed(client)["v1"]["state"] == "unloading"
        turnstile.allow(20)
        reader.join(10)
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in got if e["choices"]) == "abcdef"
        until(lambda: "v1" not in listed(client))
