"""The frame of web artifacts: hostile pages reach no other host and read nothing; without it they do."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page

from web_ui.browser import open_tab
from web_ui.conftest import OpenTab
from web_ui.hostile_pages import READS, REQUESTS, TOP, page_of

pytestmark = pytest.mark.heavy

TOKEN = "the-token-of-the-reader"
WEBRTC = {name for name in REQUESTS if name.startswith("webrtc")}

SHOW_FRAMED = """
([name, html]) => {
  const frame = document.createElement('iframe')
  frame.setAttribute('sandbox', 'allow-scripts')
  frame.src = '/ui/artifact.html'
  addEventListener('message', function send(event) {
    if (event.source !== frame.contentWindow || event.data !== 'ready') return
    removeEventListener('message', send)
    frame.contentWindow.postMessage(html, '*')
  })
  document.body.append(frame)
}
"""
SHOW_PLAIN = """
([name]) => {
  const frame = document.createElement('iframe')
  frame.src = `/page/${name}`
  document.body.append(frame)
}
"""
LISTEN = """
token => {
  window.ran = []
  window.reads = []
  addEventListener('message', ({ data }) => {
    if (data.ran) ran.push(data.ran)
    if (data.probe) reads.push([data.probe, String(data.read)])
  })
  window.token = document.body.dataset.token = token
  if (!localStorage.getItem('luxx.sign-in')) localStorage.setItem('luxx.sign-in', token)
  sessionStorage.setItem('luxx.sign-in', token)
  document.cookie = `token=${token}`
}
"""


class OtherHost:
    """Another host, which counts what reaches it: requests by their path, and packets."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.pages: dict[str, str] = {}
        host = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                kind, _, name = self.path.partition("?")[0].strip("/").partition("/")
                body = b""
                if kind == "page":
                    body = host.pages.get(name, "<!doctype html><body>").encode()
                else:
                    host.seen.add(kind)
                self.send_response(200)
                self.send_header("access-control-allow-origin", "*")
                self.send_header("content-type", "text/html" if kind == "page" else "text/plain")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.udp = {name: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for name in WEBRTC}
        for each in self.udp.values():
            each.bind(("127.0.0.1", 0))
        for work in (self.server.serve_forever, self._receive):
            Thread(target=work, daemon=True).start()

    def _receive(self) -> None:
        with suppress(OSError, ValueError):
            while self.udp:
                for each in select.select(list(self.udp.values()), [], [], 0.2)[0]:
                    each.recv(2048)
                    self.seen.update(name for name, other in self.udp.items() if other is each)

    def page(self, name: str) -> str:
        host, port = self.udp[name].getsockname() if name in self.udp else ("", 0)
        return page_of(name, self.url, stun=f"{host}:{port}")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        for each in self.udp.values():
            each.close()


@pytest.fixture
def other_host() -> Iterator[OtherHost]:
    host = OtherHost()
    yield host
    host.close()


def wait_for(is_done: Callable[[], bool], page: Page, seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > until:
            return False
        page.wait_for_timeout(50)
    return True


def test_without_the_frame_each_hostile_page_reaches_another_host(
    browser: Browser, other_host: OtherHost
) -> None:
    """What the test below proves would be nothing if the pages were harmless."""
    home = OtherHost()
    home.pages = {name: other_host.page(name) for name in (*REQUESTS, *TOP, *READS)}
    try:
        with open_tab(browser, home.url) as tab:
            tab.expected_problems.append("")
            page = tab.open("/page/home")
            page.evaluate(LISTEN, TOKEN)
            for name in (*REQUESTS, *READS):
                page.evaluate(SHOW_PLAIN, [name])
            wait_for(lambda: set(REQUESTS) <= other_host.seen, page)
            assert sorted(set(REQUESTS) - other_host.seen) == []
            read = wait_for(lambda: tokens_read(page) >= set(READS), page)
            assert read, set(READS) - tokens_read(page)
        for name in TOP:
            with open_tab(browser, home.url) as alone:
                alone.expected_problems.append("")
                page = alone.open("/page/home")
                page.evaluate(SHOW_PLAIN, [name])
                # A page that is closed while another one replaces it may never answer that it is closed.
                page.wait_for_url(f"{other_host.url}/**")
                assert name in other_host.seen, name
    finally:
        home.close()


def test_a_web_artifact_reaches_no_other_host_and_reads_no_token(
    new_tab: OpenTab, other_host: OtherHost
) -> None:
    with new_tab() as tab:
        tab.expected_problems.append("")
        page = tab.open("/ui/sign-in")
        page.evaluate(LISTEN, TOKEN)
        names = (*REQUESTS, *READS, *TOP)
        for name in names:
            page.evaluate(SHOW_FRAMED, [name, other_host.page(name)])
        wait_for(lambda: set(page.evaluate("ran")) >= set(names), page)
        assert sorted(set(names) - set(page.evaluate("ran"))) == []
        page.wait_for_timeout(3000)
        assert sorted(other_host.seen) == []
        assert tokens_read(page) == set()
        assert page.url == f"{tab.url}/ui/sign-in"
        assert len(page.context.pages) == 2  # and the one that stays open in each profile


def tokens_read(page: Page) -> set[str]:
    return {name for name, read in page.evaluate("reads") if TOKEN in read}
