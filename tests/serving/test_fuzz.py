"""Requests that no client of good will would send: none brings a 5xx, a wait without end, or the server down.

FUZZ_REQUESTS=10000 sends so many instead of a few hundred; FUZZ_SEED other ones.
"""

import os
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import pytest

from shared.serving.bench.fuzz import requests, unfinished
from tests.serving.live import serving, until, write_tiny_model
from tests.serving.whole import whole_model

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "400"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
CALLERS = 4
PATIENCE_S = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    with serving(whole_model(folder, settings={"local_only": True})) as client:  # the operator's routes are open
        yield client


def answer(port: int, request: bytes) -> bytes:
    """All that the server says to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        said = b""
        try:
            sock.sendall(request)
            while piece := sock.recv(2**16):
                said += piece
        except (ConnectionResetError, BrokenPipeError):  # closed on us while we were still sending
            pass
        return said


def status(said: bytes) -> int:
    said = said.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    return int(said.split(b" ", 2)[1]) if said.startswith(b"HTTP/1.") else 0


def still_answers(client) -> bool:
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
    response = client.post("/v1/completions", json=body)
    return response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 3


def test_thousands_of_odd_requests(server, caplog):
    counted: Counter[int] = Counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        for number, (request, said) in enumerate(
            pool.map(lambda r: (r, answer(server.port, r)), islice(requests(SEED, "tiny"), REQUESTS))
        ):
            code = status(said)
            counted[code] += 1
            assert 200 <= code < 500, f"{code or 'nothing'} to request {number}: {request[:3000]!r}\n{said[:3000]!r}"
            if number % 1000 == 0:
                assert still_answers(server)
    print(dict(sorted(counted.items())))
    assert counted[200] > REQUESTS / 50  # it wasn't all refused
    assert counted[400] > REQUESTS / 10
    assert still_answers(server)
    until(lambda: not server.service.open)
    until(lambda: not server.engine._requests)
    assert "Traceback" not in caplog.text


def test_requests_that_never_end_cost_nothing_but_their_connection(server):
    socks = []
    for beginning in islice(unfinished(SEED, "tiny"), 50):
        socks.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
        socks[-1].sendall(beginning)
    start = time.monotonic()
    assert still_answers(server)
    assert time.monotonic() - start < 5
    for sock in socks:
        sock.close()
    until(lambda: not server.service.open)
    until(lambda: not server.server.server_state.tasks)
    assert still_answers(server)


def test_what_the_openapi_schema_allows_and_what_it_does_not(server):
    """schemathesis makes requests out of /openapi.json, good ones and bad ones, and holds the answers against it."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed; it is in the [dev] extra")
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.specs.openapi import checks

    promised = [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
    ]
    schema = schemathesis.openapi.from_url(f"{server.base_url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize"} <= {operation.path for operation in operations}
    answered: Counter[int] = Counter()
    examples = max(REQUESTS // len(operations) // 4, 2)
    for operation in operations:
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def holds(case):
                if isinstance(case.body, dict):
                    if isinstance(case.body.get("model"), str):
                        case.body["model"] = "tiny"  # all other names are refused before anything else is looked at
                    if "timeout" in case.body:
                        case.body["timeout"] = PATIENCE_S  # what must be done at once may fail honestly, with 504
                answered[case.call_and_validate(checks=promised, timeout=PATIENCE_S).status_code] += 1

            with suppress(Unsatisfiable):  # a GET without parameters can't be asked for wrongly
                holds()
    print(dict(sorted(answered.items())))
    assert answered[200] > 5
    assert answered[400] > 20
    assert still_answers(server)
