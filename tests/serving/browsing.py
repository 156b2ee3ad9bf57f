"""A real browser for the tests of the pages. Skipped without playwright ([dev] extra) or a Chromium.

In a test's module: browser = pytest.fixture(scope="module")(launch)
"""

import shutil
from contextlib import contextmanager

import pytest

try:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)
except ImportError:
    expect = sync_playwright = None

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No sandbox: as root, and in containers, Chromium refuses to start with one. No background traffic: only our page's.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def launch():
    if sync_playwright is None:
        pytest.skip("playwright is not installed; it is in the [dev] extra")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def open_page(browser, server, path: str = "/", **settings):
    """A fresh page on the server. Afterwards: no error in its console but failed requests, and no request elsewhere."""
    context = browser.new_context(**settings)
    page, problems, requests = context.new_page(), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda m: m.type == "error" and "Failed to load" not in m.text and problems.append(m.text))
    page.goto(f"{server.base_url}".rstrip("/") + path)
    yield page
    context.close()
    assert problems == []
    assert all(url.startswith((str(server.base_url), "data:", "blob:")) for url in requests)


def fits(page) -> bool:
    """Whether the page needs no scrolling sideways."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")
