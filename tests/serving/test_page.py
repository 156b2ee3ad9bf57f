"""The chat page in a real browser: what a person does there, and what it must never do with a model's words."""

import re

import pytest

from shared.serving.guard.keys import KeyRing
from tests.inference.scripted import ScriptedModel, Turnstile
from tests.serving.browsing import expect, fits, launch, open_page
from tests.serving.live import hold, scripted, serving, until

browser = pytest.fixture(scope="module")(launch)
ANSWER = "Paris <b>is</b> the capital. 😀"
MARKDOWN = """# Caches
A **cache** keeps the *result*, `get(k)` <img src=x onerror=alert(1)>, [docs](https://example.org/a) [x](javascript:a)
1. look
   - a hit
2. store

```python
if x < 1:
    y = "<i>**no**</i>"
```

| name | n |
|:-----|--:|
| LRU  | 1 |
"""


@pytest.fixture
def model():
    return ScriptedModel(ANSWER, context=200)


@pytest.fixture
def server(model):
    with serving(scripted(model, max_waiting=0, max_num_seqs=1)) as client:
        yield client


def ask(page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()  # the page has found the server
    page.keyboard.press("Enter")


def read(model) -> str:
    """The latest prompt."""
    return bytes(model.prompts[-1]).decode()


def test_a_conversation(browser, server, model):
    with open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        expect(page.get_by_role("status")).to_have_attribute("title", "scripted")  # a phone shows its beginning
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        ask(page, "<i>Capital</i>?")
        answer = page.locator(".assistant .text")
        expect(answer).to_have_text(ANSWER)  # as text, tags and all
        assert page.locator("#log b, #log i").count() == 0
        expect(page.locator(".facts")).to_have_text(re.compile(r"first token after .* s · \d+ tokens · .* tokens/s"))
        ask(page, "More")
        expect(page.locator(".facts")).to_have_count(2)
        assert read(model) == f"u:<i>Capital</i>?\na:{ANSWER}\nu:More\na:"
        page.get_by_role("button", name="Regenerate the answer").click()
        expect(page.get_by_label("Your message")).to_be_focused()  # the button is gone
        expect(page.locator(".facts")).to_have_count(2)
        until(lambda: len(model.prompts) == 3)
        assert read(model) == f"u:<i>Capital</i>?\na:{ANSWER}\nu:More\na:"
        page.get_by_role("button", name="Edit").click()
        expect(page.get_by_label("Your message")).to_have_value("More")
        ask(page, "Less")
        expect(page.locator(".facts")).to_have_count(2)
        expect(page.locator(".user")).to_have_count(2)
        assert read(model) == f"u:<i>Capital</i>?\na:{ANSWER}\nu:Less\na:"
        page.reload()  # goes on where it was
        expect(answer).to_have_text([ANSWER, ANSWER])
        page.get_by_role("button", name="New chat").click()
        expect(answer).to_have_count(0)
        ask(page, "Anew")
        expect(page.locator(".facts")).to_have_count(1)
        assert read(model) == "u:Anew\na:"
        page.get_by_role("button", name="Chats", exact=True).click()
        page.get_by_role("button", name="<i>Capital</i>? ").first.click()
        expect(page.locator(".user .text")).to_have_text(["<i>Capital</i>?", "Less"])
        page.get_by_role("button", name="Chats", exact=True).click()
        page.get_by_role("button", name="Delete: <i>Capital</i>?").click()
        expect(answer).to_have_count(0)
        assert "Capital" not in page.evaluate("localStorage.chats")


def test_markdown_is_shown_and_html_is_not_run(browser):
    model = ScriptedModel(MARKDOWN, context=600)
    phone = {"viewport": {"width": 390, "height": 700}}
    with serving(scripted(model)) as server, open_page(browser, server, **phone) as page:
        page.add_init_script("window.alert = () => { document.title = 'run' }")
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Longest answer").fill("400")
        page.get_by_role("button", name="Save").click()
        # Whatever was shown while it was written: markers that never belonged there, and how often code blocks came.
        page.evaluate("""() => {
            window.seen = []; window.made = 0;
            new MutationObserver((changes) => {
                for (const c of changes) for (const n of c.addedNodes) if (n.className === 'code') made += 1;
                seen.push(document.querySelector('.assistant .text')?.innerText ?? '');
            }).observe(document.getElementById('log'), { subtree: true, childList: true, characterData: true });
        }""")
        ask(page, "Go")
        expect(page.locator(".facts")).to_be_visible()
        text = page.locator(".assistant .text")
        expect(text.locator("h3")).to_have_text("Caches")
        expect(text.locator("strong")).to_have_text("cache")
        expect(text.locator("em")).to_have_text("result")
        expect(text.locator("p code")).to_have_text("get(k)")
        expect(text.locator("ol > li")).to_have_count(2)
        expect(text.locator("ol ul li")).to_have_text("a hit")
        expect(text.locator("pre code")).to_have_text('if x < 1:\n    y = "<i>**no**</i>"')
        expect(text.locator("td")).to_have_text(["LRU", "1"])
        assert [a.get_attribute("href") for a in text.locator("a").all()] == ["https://example.org/a"]
        assert "<img src=x onerror=alert(1)>" in text.inner_text()
        assert text.locator("img, i, script").count() == 0
        assert page.title() != "run"
        seen, made = page.evaluate("[seen, made]")
        assert made == 1, "the block of code was made anew while it grew"
        prose = [shown.split("if x")[0] for shown in seen]
        assert not [shown for shown in prose if re.search(r"\*\*|`|^#|\]\(https|\|--", shown, re.M)]
        assert fits(page)
        text.get_by_role("button", name="Copy").click()
        expect(text.locator(".bar button")).not_to_have_text("Copy")  # "Copied", or how to do it by hand


def test_keys_and_settings(browser, server, model):
    with open_page(browser, server) as page:
        page.get_by_role("button", name="Settings").click()
        for name, value in {"Longest answer": "5", "System prompt": "Be brief", "Top-p": "0.9", "Seed": "7"}.items():
            page.get_by_label(name).fill(value)
        page.get_by_role("button", name="Save").click()
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Longest answer").fill("6")
        page.keyboard.press("Escape")  # leaves everything as it was
        box = page.get_by_label("Your message")
        box.fill("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        expect(box).to_have_value("one\ntwo")
        with page.expect_request("**/v1/chat/completions") as asked:
            page.keyboard.press("Enter")
        body = asked.value.post_data_json
        assert (body["model"], body["max_tokens"], body["top_p"], body["seed"]) == ("scripted", 5, 0.9, 7)
        expect(page.locator(".facts")).to_contain_text("cut off")
        expect(page.locator(".assistant .text")).to_have_text("Paris")
        assert read(model) == "s:Be brief\nu:one\ntwo\na:"
        page.reload()
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_label("Longest answer")).to_have_value("5")
        page.get_by_label("Model", exact=True).select_option("scripted@v1")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_have_text("scripted@v1")


def test_the_stop_button_stops_the_model(browser, server, model):
    with open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        model.before_step = turnstile = Turnstile(3)
        ask(page, "Go")
        expect(page.locator(".assistant .text")).to_have_text("Par")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".facts")).to_contain_text("stopped")
        until(lambda: not server.engine._requests)
        turnstile.allow(1000)
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
        expect(page.get_by_role("alert")).to_contain_text("wait")  # who else does, and how long to wait
        again = page.get_by_role("button", name="Try again")
        expect(again).to_have_text(re.compile(r"Try again in \d+ s"))
        turnstile.allow(1000)
        expect(other.locator(".facts")).to_be_visible()
        again.click()
        expect(page.locator(".assistant .text")).to_have_text(ANSWER)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert read(model) == "u:Second\na:"

        def fail(done):
            if done == [3]:
                raise RuntimeError("no memory left")

        model.before_step = fail
        ask(page, "Third")
        expect(page.get_by_role("alert")).to_contain_text("no memory left")
        expect(page.locator(".assistant .text").last).to_have_text("Par")
        model.before_step = None
        page.get_by_role("button", name="New chat").click()
        ask(page, "x" * 250)  # it will never be taken, so it comes back into the box
        expect(page.get_by_role("alert")).to_contain_text("200 tokens")
        expect(page.get_by_label("Your message")).to_have_value("x" * 250)
        expect(page.locator(".user")).to_have_count(0)
        expect(page.get_by_role("button", name="Try again")).to_have_count(0)
        ask(page, "Short")
        expect(page.locator(".facts")).to_have_count(1)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert read(model) == "u:Short\na:"
        ask(page, "y" * 180)  # with what was said before, it is too long
        expect(page.get_by_role("alert")).to_contain_text("This conversation has become longer than the model can read")
        page.get_by_role("button", name="Start a new chat").click()
        expect(page.locator(".message")).to_have_count(0)
        expect(page.get_by_label("Your message")).to_have_value("y" * 180)
        page.keyboard.press("Enter")
        expect(page.locator(".facts")).to_have_count(1)


def test_a_server_that_goes_away(browser, server, model):
    with open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        page.route("**/*", lambda route: route.abort())
        ask(page, "Hello?")
        expect(page.get_by_role("alert")).to_contain_text("can't be reached")
        expect(page.get_by_role("status")).to_have_text("the server doesn't answer")
        page.unroute("**/*")
        expect(page.get_by_role("status")).to_have_text("scripted")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".assistant .text")).to_have_text(ANSWER)


def test_models_are_asked_for_once_and_a_slow_engine_is_waited_for(browser, server, model):
    """To ask for the models costs a request of the key's limit; to ask whether the server is there costs nothing."""
    with open_page(browser, server) as page:
        expect(page.get_by_role("status")).to_have_text("scripted")
        asked = []
        page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2]))
        page.route("**/health/ready", lambda route: route.fulfill(status=503, json={"status": "not ready"}))
        turnstile = hold(model, 3)
        ask(page, "Hi")
        expect(page.locator(".pace")).to_have_text(re.compile(r"^3 tokens .* waiting for the engine"))
        expect(page.get_by_role("status")).to_have_text("scripted · waiting for the engine")
        page.get_by_role("button", name="Stop").click()
        turnstile.allow(1000)
        ask(page, "Again")  # it is let in, and waits
        expect(page.locator(".facts")).to_have_count(2)
        page.unroute("**/health/ready")
        assert [path for path in asked if path] == ["chat/completions", "chat/completions"]
        gone = {"error": {"message": "There is no such model.", "code": "model_not_found"}}
        page.route("**/chat/completions", lambda route: route.fulfill(status=404, json=gone))
        with page.expect_request("**/v1/models"):
            ask(page, "More")


def test_the_key(browser, model):
    keys = KeyRing.load(api_key="sesame")
    with serving(scripted(model, keys=keys)) as server, open_page(browser, server) as page:
        key = page.get_by_label("API key")
        expect(key).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("status")).to_have_text("needs a key: see Settings")
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Enter the API key").click()
        expect(page.get_by_role("heading", name="This server needs a key")).to_be_visible()
        key.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="didn't take that key")).to_be_visible()
        key.fill("sesame")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("scripted")
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Change the API key").click()
        page.keyboard.press("Escape")  # the one in use stays
        expect(key).to_be_hidden()
        expect(page.get_by_role("status")).to_have_text("scripted")
        ask(page, "Hi")
        expect(page.locator(".assistant .text")).to_have_text(ANSWER)


def test_nothing_is_wider_than_a_phone(browser, server, model):
    model.script = list(b"`" + b"c" * 60 + b"`\n\n|" + b" cell |" * 9 + b"\n|" + b"--|" * 9 + b"\n```\n" + b"w" * 30)
    with open_page(browser, server, viewport={"width": 320, "height": 600}, color_scheme="dark") as page:
        ask(page, "w" * 60)
        expect(page.locator(".facts")).to_be_visible()
        assert fits(page)
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")  # only the talk scrolls
        for name in ("Send", "Settings", "Chats", "New chat"):
            box = page.get_by_role("button", name=name, exact=True).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 320
            assert box["y"] + box["height"] <= 600
        page.get_by_role("button", name="Settings").click()
        assert fits(page)
