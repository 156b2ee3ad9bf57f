"""The cluster command, with Ray: two replicas in processes of their own, one of which is killed, and an update.

Ray is not among the book's requirements, so this runs where it is installed: pip install -e '.[scale]'
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serving.live import until, write_tiny_model

pytest.importorskip("ray", reason="Ray isn't installed; it is in the extra [scale]")
ROOT = Path(__file__).parents[2]
START_S = 120.0


def processes_under(pid):
    """The processes that descend from one: pid -> command line. Linux."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue  # it has ended meanwhile
    found, last = {pid}, set()
    while found != last:
        last, found = found, found | {child for child, parent in parents.items() if parent in found}
    return {child: commands.get(child, "") for child in found - {pid}}


class Cluster:
    def __init__(self, process, client):
        self.process, self.client = process, client

    def replicas(self, version="v1"):
        """The pids of a version's replicas; one that just starts has no name yet."""
        named = processes_under(self.process.pid).items()
        return sorted(pid for pid, command in named if f"ServeReplica:engine-{version}:" in command)

    def complete(self, prompt, **parameters):
        body = {"model": "tiny", "prompt": prompt, **parameters}
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    def stream(self, prompt, on_piece=lambda n: None, **parameters):
        """The text of a streamed answer. on_piece: called after each piece, with how many there were."""
        body, text = {"model": "tiny", "prompt": prompt, "stream": True, **parameters}, []
        with self.client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    data = json.loads(line[6:])
                    assert "error" not in data, data
                    text.append(data["choices"][0]["text"])
                    on_piece(len(text))
        assert line == "data: [DONE]" or not line
        return "".join(text)

    def metric(self, name):
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        return sum(map(float, found))


@contextmanager
def running(folder, *options):
    """The command over a model's folder, with two replicas; ended by SIGTERM, which must leave nothing behind."""
    command = [sys.executable, "-m", "shared.serving.cluster", "--replicas", "2", "--model", folder, "--port", "0"]
    log = open(folder.parent / "cluster.log", "w+")  # noqa: SIM115
    process = subprocess.Popen([*map(str, command), "--threads", "1", *options], cwd=ROOT, stdout=log, stderr=log)

    def said():
        return (folder.parent / "cluster.log").read_text()

    try:
        until(lambda: "Ready: " in said() or process.poll() is not None, START_S)
        assert process.poll() is None, said()
        address = re.search(r"Ready: (\S+)", said())[1]
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            yield Cluster(process, client)
        children = processes_under(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, said()
        assert "Traceback" not in said()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 30)
    finally:
        process.kill()
        log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(write_tiny_model(tmp_path_factory.mktemp("cluster") / "tiny"), "--max-num-seqs", "8") as cluster:
        yield cluster


def test_two_replicas_are_one_server(cluster):
    assert len(cluster.replicas()) == 2
    assert cluster.complete("abc", seed=4, max_tokens=8) == cluster.complete("abc", seed=4, max_tokens=8)
    (version,) = cluster.client.get("/admin/versions").json()["data"]
    assert version["state"] == "ready"
    answer = cluster.client.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 5000})
    assert answer.status_code == 400


def test_requests_with_the_same_beginning_go_to_the_same_replica(cluster):
    """Each replica has a prefix cache of its own; only where a beginning was before is it found."""
    before = cluster.metric("llm_prefix_hit_tokens_total")
    beginnings = ["q" * 64, "w" * 64, "e" * 64]
    for k in range(12):
        cluster.complete(beginnings[k % 3] + str(k), max_tokens=1)
    until(lambda: cluster.metric("llm_prefix_hit_tokens_total") >= before + 9 * 64)  # all but the first of each


def test_killing_a_replica_in_the_middle_of_streams_changes_nothing(cluster):
    prompts = [f"prompt {k}" for k in range(6)]
    parameters = {"max_tokens": 150, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    whole = [cluster.complete(prompt, **parameters) for prompt in prompts]
    (victim, other), begun, texts = cluster.replicas(), threading.Barrier(7), {}

    def on_piece(n):
        if n == 5:
            begun.wait(20)

    def read(k):
        texts[k] = cluster.stream(prompts[k], on_piece, **parameters)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    begun.wait(20)
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert [texts.get(k) for k in range(6)] == whole
    until(lambda: len(cluster.replicas()) == 2 and cluster.metric("llm_engine_restarts_total") == 1, 60)
    assert other in cluster.replicas()
    assert victim not in cluster.replicas()


def test_an_update_under_traffic_fails_no_request(cluster):
    """A new version's replicas start beside the old ones, take over, and the old ones end when they are done."""
    failed, done, stop = [], [], threading.Event()

    def call(k):
        while not stop.is_set():
            try:
                cluster.stream(f"caller {k}", max_tokens=20)
                done.append(k)
            except Exception as error:
                failed.append(error)

    callers = [threading.Thread(target=call, args=(k,)) for k in range(3)]
    for caller in callers:
        caller.start()
    try:
        (old,) = cluster.client.get("/admin/versions").json()["data"]
        body = {"path": old["path"], "model": "tiny", "name": "v2"}
        assert cluster.client.post("/admin/versions/load", json=body).status_code == 202
        until(lambda: state(cluster, "v2") == "ready", 90)
        assert cluster.client.post("/admin/versions/promote", json={"name": "v2"}).status_code == 200
        n = len(done)
        until(lambda: len(done) > n + 10)
        assert cluster.client.delete("/admin/versions/v1").status_code == 202
        until(lambda: not cluster.replicas("v1"), 60)
        n = len(done)
        until(lambda: len(done) > n + 10)
    finally:
        stop.set()
        for caller in callers:
            caller.join(30)
    assert not failed
    assert len(cluster.replicas("v2")) == 2
    time.sleep(0.1)


def state(cluster, name):
    versions = cluster.client.get("/admin/versions").json()["data"]
    (found,) = [version for version in versions if version["name"] == name]
    assert found["state"] not in ("failed", "rejected"), found
    return found["state"]
