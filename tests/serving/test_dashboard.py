"""The dashboard: what the server says of itself, and what a browser shows of it."""

import asyncio
import json
import re
import threading
import time

import pytest

from shared.observability.telemetry import Telemetry
from shared.serving.api import dashboard
from shared.serving.guard.keys import KeyRing
from tests.inference.scripted import ScriptedModel
from tests.serving.browsing import expect, fits, launch, open_page
from tests.serving.live import PATH, chat, hold, scripted, serving, until

browser = pytest.fixture(scope="module")(launch)
KEYS = KeyRing.load(api_key="sesame", admin_key="open")
OPEN = {"debug": True, "local_only": True}
SECRET = "a text that nobody else may read"


@pytest.fixture
def model():
    return ScriptedModel("x" * 120, context=200)


def stream(server, text: str = SECRET, **headers):
    """A stream that is read in a thread of its own, to its end."""

    def read():
        with server.stream("POST", PATH, json=chat(text, stream=True, max_tokens=100), headers=headers) as answer:
            for _ in answer.iter_lines():
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def settled(server):
    """The state once the last one isn't fresh any more."""
    time.sleep(dashboard.FRESH_S)
    return server.get("/dashboard/state").json()


def test_the_blocks_are_counted_and_drawn_by_state():
    blocks = dashboard._blocks(bytes([0, 255, 1, 2, 254, 0]))
    assert blocks == {"free": 2, "cached": 1, "used": 1, "shared": 2, "num": 6, "stride": 1, "cells": "012330"}
    many = dashboard._blocks(bytes([1]) * (dashboard.MOST_CELLS + 1))
    assert (many["stride"], many["used"], len(many["cells"])) == (2, 2**14 + 1, 2**13 + 1)
    assert dashboard._blocks(b"") is None


def test_the_state_is_what_it_is_and_holds_no_texts(model):
    turnstile = hold(model)
    with serving(scripted(model, max_num_seqs=2, settings=OPEN)) as server:
        threads = [stream(server, **{"X-Request-ID": f"mine-{i}"}) for i in range(3)]
        until(lambda: settled(server)["queue"]["waiting"] == 1)
        turnstile.allow(3)
        until(lambda: settled(server)["requests"][1]["stage"] == "decode")
        state = settled(server)
        assert state["queue"] | {"max_waiting": 0} == {
            "running": 2, "max_running": 2, "waiting": 1, "max_waiting": 0, "by_key": {"anyone": 1}
        }  # fmt: skip
        assert [request["stage"] for request in state["requests"]] == ["decode", "decode", "queued"]
        assert {request["id"] for request in state["requests"]} == {"mine-0", "mine-1", "mine-2"}
        assert all(0 < request["age_s"] < 60 for request in state["requests"])
        prompt = len(f"u:{SECRET}\na:")
        assert [request["prompt_tokens"] for request in state["requests"]] == [prompt, prompt, 0]  # not yet read
        (version,) = state["versions"]
        assert (version["name"], version["state"], version["engine_state"], version["share"]) == (
            "v1",
            "ready",
            "ready",
            1,
        )
        assert version["blocks"]["used"] == version["blocks"]["cells"].count("2") == 2 * -(-(prompt + 4) // 16)
        turnstile.allow(1000)
        for thread in threads:
            thread.join(20)
        state = settled(server)
        assert (state["num_requests"], state["totals"]["requests"]) == (0, 3)
        assert (state["totals"]["output_tokens"], state["latency"]["e2e"]["n"]) == (300, 3)
        assert state["versions"][0]["blocks"]["used"] == 0
        assert [trace["output_tokens"] for trace in state["traces"]] == [100] * 3
        answer = server.get("/dashboard/traces")
        assert "attachment" in answer.headers["Content-Disposition"]
        bars = [event for event in answer.json()["traceEvents"] if event["ph"] == "X"]
        assert {bar["name"] for bar in bars} >= {"queue", "prefill", "decode"}
        assert SECRET not in json.dumps(state) + answer.text
        assert "xxx" not in json.dumps(state) + answer.text


def test_the_state_needs_the_admin_key_and_the_page_none(model):
    with serving(scripted(model, keys=KEYS)) as server:
        for path in ("/dashboard/state", "/dashboard/traces"):
            assert server.get(path).status_code in (401, 403)
            assert server.get(path, headers={"Authorization": "Bearer sesame"}).status_code in (401, 403)
            assert server.get(path, headers={"Authorization": "Bearer open"}).status_code == 200
        policy = server.get("/dashboard").headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for path in ("/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/nothing.js", "/static/",
                     f"/static/{'x' * 5000}.js", "/static/.js", "/static/chat.js/"):  # fmt: skip
            assert server.get(path).status_code == 404


def test_many_dashboards_cost_no_more_than_one(model, monkeypatch):
    """The engine is asked four times a second at most, and a state takes little of the event loop's time."""
    service = scripted(model, telemetry=Telemetry(debug=True), num_blocks=4096)

    async def measure() -> tuple[int, float]:
        await service.start()
        engine, asked = service.versions.list()[0].engine, []
        block_map = engine.block_map
        engine.block_map = lambda: asked.append(None) or block_map()
        for i in range(1000):  # as busy as it gets
            trace = service.telemetry.begin(f"request-{i}", PATH)
            trace.model, trace.version, trace.key = "scripted", "v1", "anyone"
            trace.queued = trace.started = trace.first_token = trace.arrived
            trace.output_tokens = 50
            if i >= 64:
                service.telemetry.finish(trace)
        view = dashboard.Dashboard(service)
        first = await asyncio.gather(*(view.state() for _ in range(50)))
        assert len(set(first)) == 1
        once = len(asked)
        monkeypatch.setattr(dashboard, "FRESH_S", 0.0)
        best = float("inf")
        for _ in range(5):
            began = time.process_time()
            for _ in range(10):
                await view.state()
            best = min(best, (time.process_time() - began) / 10)
        await service.stop(0.0)
        return once, best

    once, seconds = asyncio.run(measure())
    assert once == 1
    assert seconds < 0.005, f"a state takes {seconds * 1000:.1f} ms of the event loop's time"  # 1.5 ms where measured


def test_an_engine_that_does_not_answer_holds_up_nothing(model):
    service = scripted(model)

    async def ask() -> dict:
        await service.start()
        service.versions.list()[0].engine.block_map = lambda: asyncio.sleep(60)
        state = json.loads(await dashboard.Dashboard(service).state())
        await service.stop(0.0)
        return state

    assert asyncio.run(asyncio.wait_for(ask(), 5))["versions"][0]["blocks"] is None


def test_the_page_shows_what_happens_and_that_the_server_has_gone(browser, model):
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}
    service = scripted(model, max_num_seqs=2, settings=OPEN, telemetry=Telemetry(debug=True, cost=3.0))
    with serving(service) as server, open_page(browser, server, "/dashboard", **phone) as page:
        expect(page.get_by_role("heading", name="No requests yet")).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("live")
        turnstile = hold(model)
        threads = [stream(server) for _ in range(3)]
        expect(page.locator("#running")).to_have_text("2")
        expect(page.locator("#waiting")).to_have_text("1")
        expect(page.locator("#requests tbody tr")).to_have_count(3)
        expect(page.locator("#queue")).to_contain_text("anyone")
        turnstile.allow(2)
        blocks = page.locator("#maps canvas")
        expect(page.locator("#maps p")).to_contain_text(re.compile(r" · waste \d+%$"))
        expect(blocks).to_have_attribute("aria-label", re.compile(r"^v1: 200 blocks .* 194 free · 0 cached · 6 used"))
        used = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--used')")
        drawn = """(canvas) => { const [r, g, b] = canvas.getContext("2d").getImageData(2, 2, 1, 1).data;
                   return '#' + [r, g, b].map((n) => n.toString(16).padStart(2, '0')).join('') }"""
        assert blocks.evaluate(drawn) == used
        turnstile.allow(40)
        expect(blocks).to_have_attribute("aria-label", re.compile(r" 10 used"))  # they fill up
        turnstile.allow(1000)
        for thread in threads:
            thread.join(20)
        expect(page.locator("#running")).to_have_text("0")
        expect(page.locator("#latency [data-of=ttft] td").last).to_have_text("3")
        expect(page.locator("#latency [data-of=ttft] td")).to_have_count(6)  # five percentiles, and of how many
        expect(page.locator("#waterfall .track")).to_have_count(3)
        expect(page.locator("#waterfall .spent").first).to_have_text(re.compile(r"^\d\.\d{3} s · [\d.e-]+$"))
        assert server.post(PATH, json=chat(temperature=9)).status_code == 400  # not the server's error
        expect(page.locator("#counts")).to_contain_text("can't be served1")
        expect(page.locator("#errors")).to_have_text("0")
        expect(page.get_by_role("heading", name="No requests yet")).to_be_hidden()
        page.locator("tbody dfn[data-term=tpot]").focus()
        expect(page.get_by_role("tooltip")).to_contain_text("Time per output token")
        assert fits(page)
        with page.expect_download() as saved:
            page.get_by_role("button", name="Chrome trace").click()
        assert json.loads(saved.value.path().read_text())["traceEvents"]
        server.server.should_exit = True
        expect(page.get_by_role("alert")).to_contain_text("doesn't answer")
        expect(page.get_by_role("status")).to_have_text("the server doesn't answer")


def test_the_page_asks_for_the_admin_key(browser, model):
    with serving(scripted(model, keys=KEYS)) as server, open_page(browser, server, "/dashboard") as page:
        key = page.get_by_role("dialog").locator("input")
        key.fill("sesame")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="didn't take that key")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Enter the admin key").click()
        key.fill("open")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("live")
        page.route("**/*", lambda route: route.abort())
        expect(page.get_by_role("alert")).to_contain_text("What you see is how it was at")
        page.unroute("**/*")
        expect(page.get_by_role("status")).to_contain_text("live")
        expect(page.get_by_role("alert")).to_be_hidden()
