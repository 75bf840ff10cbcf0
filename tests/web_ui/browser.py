"""A real Chromium for tests of the web UI: one for each process, with a fresh profile for each page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

WAIT_MS = 10_000
"""How long an expectation or an action of a test may wait."""

expect.set_options(timeout=WAIT_MS)

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
LAPTOP = (1280, 800)
PHONE = (390, 844)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Skips the test where no Chromium is installed."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium; Debian and Ubuntu: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=list(FLAGS), chromium_sandbox=False
        )
        yield browser
        browser.close()


class Tab:
    """A page of a profile of its own. It records script errors and requests to other sites."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.expected_problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("console", self._on_console)
        page.on("request", self._on_request)

    def _on_console(self, message: object) -> None:
        if getattr(message, "type", "") == "error":
            self.problems.append(f"console: {getattr(message, 'text', '')}")

    def _on_request(self, request: object) -> None:
        address = str(getattr(request, "url", ""))
        if not address.startswith((self.url, "data:", "blob:", self.url.replace("http:", "ws:"))):
            self.problems.append(f"request elsewhere: {address}")

    def open(self, path: str = "/ui/") -> Page:
        self.page.goto(f"{self.url}{path}", wait_until="domcontentloaded")
        return self.page

    def check(self) -> None:
        """Raises AssertionError for what went wrong and was not expected (part of the text)."""
        found = [each for each in self.problems if not any(part in each for part in self.expected_problems)]
        assert not found, found


@contextmanager
def open_tab(
    browser: Browser, url: str, *, size: tuple[int, int] = LAPTOP, context: BrowserContext | None = None
) -> Iterator[Tab]:
    """A tab of a new profile, or of the profile `context`."""
    own = context or browser.new_context(viewport={"width": size[0], "height": size[1]}, locale="en-GB")
    own.set_default_timeout(WAIT_MS)
    tab = Tab(own.new_page(), url)
    try:
        yield tab
        tab.check()
    finally:
        tab.page.close()
        if context is None:
            own.close()


def take_screenshots(tab: Tab, name: str) -> None:
    """Writes `name` in both themes into the folder LUXX_SCREENSHOTS, if that is set."""
    folder = os.environ.get("LUXX_SCREENSHOTS")
    if not folder:
        return
    for theme in ("light", "dark"):
        tab.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        tab.page.wait_for_timeout(200)
        tab.page.screenshot(path=Path(folder) / f"{name}-{theme}.png")
