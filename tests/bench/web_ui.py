"""The row of the web UI: a real Chromium on the benchmark's core, the server on its own.

The first load is measured with an empty cache at 1.6 Mbit/s and 40 ms each way there and back.

The main thread's time for a stream of 200 events a second is compared with that of an empty page of the same
server that reads the same stream and drops it.
"""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
from playwright.async_api import Browser, BrowserContext, CDPSession, Locator, Page, async_playwright

from luxx.providers.scripted import Finish, Pause, Rule, Script, ScriptedProvider, Text
from luxx.web.build import build
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.processes import Api, MeasuredServer, luxx_server
from tests.bench.upstream import Upstream
from tests.web_ui.browser import FLAGS, LAPTOP, find_chromium
from tests.web_ui.timing import FIRST_TOKEN, OPENING, long_conversation

EVENTS = 2_000
STREAM = f"[[n={EVENTS} delay=5 paragraph=40]]"
LAST = f"{EVENTS - 1:05}@"
MESSAGES = {2_000: 1000, 10_000: 300}
"""How long the conversations are, and in how many ms they have to open."""
FIRST_TOKENS = 5
SETTLE_SECONDS = 1.0
"""After a page has loaded, and after the last event, so that work that was put off is counted too."""

NETWORK = {"offline": False, "latency": 40, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 750e3 / 8}
LOAD_SECONDS = 6.0
LARGEST_PAINT = """() => new Promise(resolve => new PerformanceObserver(list =>
  resolve(list.getEntries().at(-1).startTime)
).observe({ type: 'largest-contentful-paint', buffered: true }))"""

LONGEST_TASK = """() => {
  window.longestTask = 0
  new PerformanceObserver(list => {
    for (const task of list.getEntries()) window.longestTask = Math.max(window.longestTask, task.duration)
  }).observe({ type: 'longtask' })
}"""
"""Tasks of less than 50 ms are not counted."""

RICH_PART = """## Part {number}

Some **words** with `code`, a [link](https://example.org/{number}) and $a^2 + b^2 = c_{{{number}}}$.

- one
  - of one
- two

```python
def area_{number}(width: float, height: float) -> float:
    \"\"\"The area of a field.\"\"\"
    return width * height + {number}
```

| year | sum | share |
|---|---|---|
| 2024 | {number} | 12 % |
| 2025 | {number}0 | 14 % |

$$\\int_0^{{{number}}} x^2 dx = \\frac{{{number}^3}}{{3}}$$

"""
RICH_PARTS = 30
RICH_PIECE = 12
RICH = "".join(RICH_PART.format(number=number) for number in range(1, RICH_PARTS + 1)) + "The very end."

DRAIN = """async ({ token, body }) => {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const response = await fetch('/messages/stream', { method: 'POST', headers, body: JSON.stringify(body) })
  const reader = response.body.getReader()
  for (let bytes = 0; ; ) {
    const { done, value } = await reader.read()
    if (done) return bytes
    bytes += value.length
  }
}"""


class _Session:
    """A profile that is signed in."""

    def __init__(self, browser: Browser, server: MeasuredServer, api: Api) -> None:
        self.url = f"http://127.0.0.1:{server.port}"
        self.api = api
        self._browser = browser

    @contextlib.asynccontextmanager
    async def page(self, path: str) -> AsyncIterator[Page]:
        """A new tab at this path, after it has settled."""
        async with self.empty_page() as page:
            await page.goto(f"{self.url}{path}")
            await asyncio.sleep(SETTLE_SECONDS)
            yield page

    @contextlib.asynccontextmanager
    async def empty_page(self) -> AsyncIterator[Page]:
        """A new tab with an empty cache."""
        context: BrowserContext = await self._browser.new_context(
            viewport={"width": LAPTOP[0], "height": LAPTOP[1]}, locale="en-GB"
        )
        stored = {"access": self.api.token, "refresh": "", "expiresAt": (time.time() + 3600) * 1000}
        entry = json.dumps(json.dumps(stored))
        await context.add_init_script(f"localStorage.setItem('luxx.sign-in', {entry})")
        yield await context.new_page()
        await context.close()


class _MainThread:
    """The CPU seconds of tasks on a page's main thread since `watch`."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session

    @classmethod
    async def watch(cls, page: Page) -> "_MainThread":
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        return cls(session)

    async def seconds(self) -> float:
        metrics = (await self._session.send("Performance.getMetrics"))["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


async def ui_row(upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """A stream, a first token, and a long conversation in a browser."""
    chromium = find_chromium()
    if chromium is None:
        raise Broken("no Chromium; Debian and Ubuntu: apt install chromium")
    problem = await asyncio.to_thread(build)
    if problem is not None:
        raise Broken(f"the web UI was not built: {problem}")
    pieces = (RICH[at : at + RICH_PIECE] for at in range(0, len(RICH), RICH_PIECE))
    reply = [event for piece in pieces for event in (Text(text=piece, pieces=1), Pause(seconds=0.005))]
    rich = Script(rules=[Rule(reply=[*reply, Finish()])])
    with ScriptedProvider(rich) as rich_upstream, luxx_server() as server:
        rich_port = int(rich_upstream.url.rpartition(":")[2])
        api = await asyncio.to_thread(Api, server.port)
        await asyncio.to_thread(api.connect_upstream, upstream.port)
        rich_id = await asyncio.to_thread(api.connect_upstream, rich_port, "openai", "scripted")
        long = {count: await asyncio.to_thread(_import_long, server, api, count) for count in MESSAGES}
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=list(FLAGS), chromium_sandbox=False
            )
            session = _Session(browser, server, api)
            for _ in range(rounds):
                await _measure(session, long, figures)
                longest = await _stream_rich(session, rich_id)
                figures.add(
                    "ui", "a rich document, longest task of the main thread", longest, "ms", at_most=100
                )
                requests, painted = await _first_load(session)
                figures.add("ui", "first load, requests", requests, "", at_most=25)
                figures.add("ui", "first load at 1.6 Mbit/s, largest paint", painted, "ms", at_most=1500)
                yield
            await browser.close()


async def _measure(session: _Session, long: dict[int, str], figures: Figures) -> None:
    drained, shown = await _drain(session), await _stream(session)
    figures.add("ui", "an event, empty page that reads it", drained, "µs")
    figures.add("ui", "an event, chat", shown, "µs")
    figures.add("ui", "an event, chat / empty page", shown / drained, "×", at_most=5)
    tokens = [await _first_token(session) for _ in range(FIRST_TOKENS)]
    figures.add("ui", "first token, event to frame", statistics.median(tokens), "ms", at_most=100)
    for count, conversation_id in long.items():
        opened, nodes = await _open_long(session, conversation_id, f"Message {count - 1}.")
        figures.add("ui", f"{count} messages, click to frame", opened, "ms", at_most=MESSAGES[count])
        figures.add("ui", f"{count} messages, DOM nodes", nodes, "", at_most=1500)


async def _drain(session: _Session) -> float:
    """Main-thread µs per event of a page that only reads."""
    async with session.page("/health") as page:
        [conversation] = await asyncio.to_thread(session.api.new_conversations, 1)
        main = await _MainThread.watch(page)
        before = await main.seconds()
        body = {"conversation_id": conversation, "content": STREAM}
        if await page.evaluate(DRAIN, {"token": session.api.token, "body": body}) < EVENTS * 20:
            raise Broken("the empty page did not read the stream")
        await asyncio.sleep(SETTLE_SECONDS)
        return (await main.seconds() - before) / EVENTS * 1e6


async def _stream(session: _Session) -> float:
    """Main-thread µs per event of the chat."""
    async with session.page("/ui/chat") as page:
        main = await _MainThread.watch(page)
        await page.get_by_label("Message", exact=True).fill(STREAM)
        before = await main.seconds()
        await page.keyboard.press("Enter")
        await asyncio.sleep(EVENTS * 0.005)
        await _answer(page, LAST).wait_for(timeout=60_000)
        await asyncio.sleep(SETTLE_SECONDS)
        return (await main.seconds() - before) / EVENTS * 1e6


def _answer(page: Page, words: str) -> Locator:
    return page.get_by_role("article", name="Answer").get_by_text(words)


async def _stream_rich(session: _Session, provider_id: str) -> float:
    """Milliseconds of the longest task of the main thread while headings, lists, code, tables and formulas
    stream."""
    [conversation] = await asyncio.to_thread(session.api.new_conversations, 1, provider_id)
    async with session.page(f"/ui/chat/{conversation}") as page:
        await page.evaluate(LONGEST_TASK)
        await page.get_by_label("Message", exact=True).fill("Write it.")
        await page.keyboard.press("Enter")
        await _answer(page, "The very end.").wait_for(timeout=120_000)
        await asyncio.sleep(SETTLE_SECONDS)
        return float(await page.evaluate("window.longestTask"))


async def _first_load(session: _Session) -> tuple[float, float]:
    """The number of requests, and milliseconds to the largest paint, with an empty cache."""
    async with session.empty_page() as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        network = await page.context.new_cdp_session(page)
        await network.send("Network.enable")
        await network.send("Network.emulateNetworkConditions", NETWORK)
        await page.goto(f"{session.url}/ui/chat")
        await asyncio.sleep(LOAD_SECONDS)
        return float(len(requests)), float(await page.evaluate(LARGEST_PAINT))


async def _first_token(session: _Session) -> float:
    """Milliseconds from the first event with text to the frame that shows it."""
    async with session.page("/ui/chat") as page:
        await page.evaluate(FIRST_TOKEN, "00000@")
        await page.get_by_label("Message", exact=True).fill("[[n=100 delay=5]]")
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => window.tokenTimes.shown !== undefined")
        times: dict[str, float] = await page.evaluate("window.tokenTimes")
        await _answer(page, "00099@").wait_for()
        return times["shown"] - times["received"]


async def _open_long(session: _Session, conversation_id: str, words: str) -> tuple[float, float]:
    """Milliseconds from the click to the frame with the newest message, and the number of DOM nodes."""
    async with session.page("/ui/chat") as page:
        await page.locator(f'a[href$="{conversation_id}"]').wait_for()
        await page.evaluate(OPENING, [conversation_id, words])
        await page.wait_for_function("() => window.openedIn !== undefined", timeout=60_000)
        opened = await page.evaluate("window.openedIn")
        return float(opened), float(await page.evaluate("document.querySelectorAll('*').length"))


class _Imported(msgspec.Struct):
    conversation_ids: list[str]


class _Answer(msgspec.Struct):
    data: _Imported


def _import_long(server: MeasuredServer, api: Api, count: int) -> str:
    answer = httpx.post(
        f"http://127.0.0.1:{server.port}/conversations/import",
        content=long_conversation(count),
        headers={"content-type": "application/json", "authorization": f"Bearer {api.token}"},
        timeout=60,
    ).raise_for_status()
    return msgspec.json.decode(answer.content, type=_Answer).data.conversation_ids[0]
