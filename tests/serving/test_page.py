"""The chat page in a real browser. Skipped without playwright and a Chromium; playwright is in the [dev] extra."""

import re
import shutil
from contextlib import contextmanager

import pytest

from tests.inference.scripted import ScriptedModel, Turnstile
from tests.serving.live import scripted, serving, until

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; it is in the [dev] extra")
expect = api.expect
expect.set_options(timeout=20_000)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No sandbox: as root, and in containers, Chromium refuses to start with one. No background traffic: only our page's.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
ANSWER = "Paris <b>is</b> the capital. 😀"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def open_page(browser, server, **settings):
    """A fresh page on the server. Afterwards: no error in its console but failed requests, and no request elsewhere."""
    context = browser.new_context(**settings)
    page, problems, requests = context.new_page(), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda m: m.type == "error" and "Failed to load" not in m.text and problems.append(m.text))
    page.goto(str(server.base_url))
    yield page
    context.close()
    assert problems == []
    assert all(url.startswith((str(server.base_url), "data:")) for url in requests)


@pytest.fixture
def model():
    return ScriptedModel(ANSWER, context=120)


@pytest.fixture
def server(model):
    with serving("scripted", lambda: scripted(model, max_waiting=0, max_num_seqs=1)) as client:
        yield client


def ask(page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()  # the page has found the server
    page.keyboard.press("Enter")


def test_a_conversation(browser, server, model):
    with open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        ask(page, "<i>Capital</i>?")
        answer = page.locator(".assistant .text")
        expect(answer).to_have_text(ANSWER)  # as text, tags and all
        assert page.locator("#log b, #log i").count() == 0
        expect(page.locator(".facts")).to_have_text(re.compile(r"first token after .* s · .* tokens/s · \d+ tokens"))
        ask(page, "More")
        expect(answer).to_have_count(2)
        expect(page.locator(".facts")).to_have_count(2)
        assert bytes(model.prompts[-1]).decode() == f"u:<i>Capital</i>?\na:{ANSWER}\nu:More\na:"
        page.get_by_role("button", name="New chat").click()
        expect(answer).to_have_count(0)
        ask(page, "Anew")
        expect(page.locator(".facts")).to_have_count(1)
        assert bytes(model.prompts[-1]).decode() == "u:Anew\na:"


def test_keys_and_settings(browser, server, model):
    with open_page(browser, server) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Longest answer").fill("5")
        page.get_by_label("System prompt").fill("Be brief")
        page.keyboard.press("Escape")
        box = page.get_by_label("Your message")
        box.fill("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        expect(box).to_have_value("one\ntwo")
        page.keyboard.press("Enter")
        expect(page.locator(".facts")).to_contain_text("cut off")
        expect(page.locator(".assistant .text")).to_have_text("Paris")
        assert bytes(model.prompts[-1]).decode() == "s:Be brief\nu:one\ntwo\na:"
        page.reload()
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_label("Longest answer")).to_have_value("5")


def test_the_stop_button_stops_the_model(browser, server, model):
    with open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        model.before_step = turnstile = Turnstile(3)
        ask(page, "Go")
        expect(page.locator(".assistant .text")).to_have_text("Par")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".facts")).to_contain_text("stopped")
        engine = server.server.config.app.state.model.engine
        until(lambda: not engine._requests)
        turnstile.allow(1000)
        until(lambda: not engine._requests)
        assert model.steps < len(ANSWER)
        expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_errors_can_be_read_and_tried_again(browser, server, model):
    with open_page(browser, server) as page, open_page(browser, server) as other:
        expect(page.get_by_role("status")).to_have_text("scripted")
        expect(other.get_by_role("status")).to_have_text("scripted")
        model.before_step = turnstile = Turnstile(1)
        ask(other, "First")
        expect(other.locator(".assistant .text")).to_have_text("P")
        ask(page, "Second")
        expect(page.get_by_role("alert")).to_contain_text("busy")
        turnstile.allow(1000)
        expect(other.locator(".facts")).to_be_visible()
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".assistant .text")).to_have_text(ANSWER)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert bytes(model.prompts[-1]).decode() == "u:Second\na:"

        def fail(done):
            if done == [3]:
                raise RuntimeError("no memory left")

        model.before_step = fail
        ask(page, "Third")
        expect(page.get_by_role("alert")).to_contain_text("no memory left")
        expect(page.locator(".assistant .text").last).to_have_text("Par")
        model.before_step = None
        page.get_by_role("button", name="New chat").click()
        ask(page, "x" * 150)
        expect(page.get_by_role("alert")).to_contain_text("context is 120 tokens")


def test_a_message_that_is_refused_comes_back_into_the_box(browser, server, model):
    with open_page(browser, server) as page:
        ask(page, "First")
        expect(page.locator(".facts")).to_have_count(1)
        ask(page, "x" * 150)
        expect(page.get_by_role("alert")).to_contain_text("context is 120 tokens")
        expect(page.get_by_label("Your message")).to_have_value("x" * 150)
        expect(page.locator(".user")).to_have_count(1)
        expect(page.get_by_role("button", name="Try again")).to_have_count(0)
        ask(page, "Short")
        expect(page.locator(".facts")).to_have_count(2)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert bytes(model.prompts[-1]).decode() == f"u:First\na:{ANSWER}\nu:Short\na:"


def test_a_server_that_goes_away(browser, model):
    with serving("scripted", lambda: scripted(model)) as server, open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        page.route("**/*", lambda route: route.abort())
        ask(page, "Hello?")
        expect(page.get_by_role("alert")).to_contain_text("can't be reached")
        expect(page.get_by_role("status")).to_have_text("the server doesn't answer")
        page.unroute("**/*")
        expect(page.get_by_role("status")).to_have_text("scripted")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".assistant .text")).to_have_text(ANSWER)


def test_the_key(browser, model):
    with serving("scripted", lambda: scripted(model), api_key="sesame") as server, open_page(browser, server) as page:
        key = page.get_by_label("API key")
        key.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="didn't take that key")).to_be_visible()
        key.fill("sesame")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("scripted")
        ask(page, "Hi")
        expect(page.locator(".assistant .text")).to_have_text(ANSWER)


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(browser, server, width, scheme):
    with open_page(browser, server, viewport={"width": width, "height": 700}, color_scheme=scheme) as page:
        ask(page, "w" * 60)
        expect(page.locator(".facts")).to_be_visible()
        for name in ("Send", "Settings", "New chat"):
            box = page.get_by_role("button", name=name).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= 700
        assert page.locator(".user .text").bounding_box()["width"] < width
