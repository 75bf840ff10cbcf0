"""A real Chromium for tests of the web UI: one for each process, with profiles that nothing is stored in."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

WAIT_MS = 10_000
"""How long an expectation or an action of a test may wait."""

expect.set_options(timeout=WAIT_MS)

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    # So that WebRTC works on a host without a network.
    "--allow-loopback-in-peer-connection",
)
STORES = "cookies,file_systems,indexeddb,local_storage,websql,service_workers,cache_storage"
"""What a page stores in a profile, besides the cache of what the server sends."""

LAPTOP = (1280, 800)
PHONE = (390, 844)


def find_chromium() -> str | None:
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Skips the test where no Chromium is installed."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium; Debian: apt install chromium-headless-shell, Ubuntu: chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=[*FLAGS, "--process-per-site"], chromium_sandbox=False
        )
        yield browser
        IDLE.clear()
        browser.close()


class Profile:
    """A profile of the browser for one site. `signs_in`: a script that runs before those of each page.

    A page stays open in it: its process keeps the compiled scripts of the web UI, which saves half of the
    time of opening a page.
    """

    def __init__(self, browser: Browser, url: str, size: tuple[int, int], is_touched: bool) -> None:
        self.signs_in = ""
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            locale="en-GB",
            has_touch=is_touched,
            is_mobile=is_touched,
        )
        self.context.set_default_timeout(WAIT_MS)
        self._url = url
        self._kept = self.context.new_page()
        self._kept.goto(f"{url}/health")
        self._devtools = self.context.new_cdp_session(self._kept)

    def new_page(self) -> Page:
        page = self.context.new_page()
        if self.signs_in:
            page.add_init_script(self.signs_in)
        return page

    def empty(self) -> None:
        """Closes its pages and deletes what they stored."""
        for page in self.context.pages:
            if page is not self._kept:
                page.close()
        self._devtools.send("Storage.clearDataForOrigin", {"origin": self._url, "storageTypes": STORES})
        self.context.set_offline(False)


IDLE: dict[tuple[object, ...], list[Profile]] = {}
"""Empty profiles by browser, site, size of the window and kind of the screen: all of one site."""


@contextmanager
def new_profile(
    browser: Browser,
    url: str,
    size: tuple[int, int] = LAPTOP,
    *,
    is_touched: bool = False,
    signs_in: str = "",
) -> Iterator[Profile]:
    """An empty profile, which another test gets afterwards unless this one failed."""
    for key in [key for key in IDLE if key[:2] != (browser, url)]:
        for unused in IDLE.pop(key):
            unused.context.close()
    idle = IDLE.setdefault((browser, url, size, is_touched), [])
    profile = idle.pop() if idle else Profile(browser, url, size, is_touched)
    profile.signs_in = signs_in
    try:
        yield profile
        profile.empty()
    except BaseException:
        profile.context.close()
        raise
    idle.append(profile)


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
    browser: Browser, url: str, *, size: tuple[int, int] = LAPTOP, profile: Profile | None = None
) -> Iterator[Tab]:
    """A tab of a profile of its own, or of `profile`."""
    with nullcontext(profile) if profile else new_profile(browser, url, size) as own:
        tab = Tab(own.new_page(), url)
        try:
            yield tab
            tab.check()
        finally:
            tab.page.close()


def take_screenshots(tab: Tab, name: str) -> None:
    """Writes `name` in both themes into the folder LUXX_SCREENSHOTS, if that is set."""
    folder = os.environ.get("LUXX_SCREENSHOTS")
    if not folder:
        return
    for theme in ("light", "dark"):
        tab.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        tab.page.wait_for_timeout(200)
        tab.page.screenshot(path=Path(folder) / f"{name}-{theme}.png")
