"""Every page of the router at three widths, with long titles, ten seats, wide tables and code: nothing is
wider than the screen, no word of a table is broken, and no text is too small to read."""

import json
from collections.abc import Callable, Iterator

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, Page, expect

from luxx.providers.scripted import Rule, Script, Text, When
from web_ui.browser import open_tab, take_screenshots
from web_ui.person import Person

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

WIDTHS = {320: 640, 390: 844, 820: 1180}
LONG = "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunt"
"""60 letters without a space."""
SPACED = "A long title of sixty letters that has spaces between words"
ADDRESS = f"https://example.org/{LONG}/{LONG}"
WIDE = f"""## {LONG}

| {SPACED} | kind | {LONG} | d | e | f | g |
| --- | --- | --- | --: | --- | --- | --- |
| a few words in a cell | constructive | `{LONG}` | 1,234,567.89 | {ADDRESS} | x | y |

```python
{LONG.lower()} = "{SPACED} {SPACED} {SPACED}"
```

`{LONG}` and {ADDRESS}

$$
{" + ".join(f"x_{{{n}}}" for n in range(60))}
$$

- [x] {LONG}
  1. > {LONG}
"""
PLAN = json.dumps({"steps": [{"id": "a", "name": LONG, "goal": SPACED}]})

FIND_WIDE = """() => {
  const width = window.innerWidth
  const found = []
  const whole = document.scrollingElement.scrollWidth
  if (whole > width) found.push(`the page is ${whole} wide`)
  const name = (each) => {
    const words = each.textContent.trim().slice(0, 40)
    return `${each.tagName.toLowerCase()}.${each.getAttribute('class') ?? ''} "${words}"`
  }
  // Those that are meant to scroll sideways; `overflow-y: auto` alone makes others do so too.
  const SIDEWAYS = 'pre, .table-frame, [data-math], .overflow-x-auto, .overflow-auto, textarea, input'
  const cuts = (style) => style.overflowX !== 'visible' || style.clip !== 'auto'
  for (const each of document.querySelectorAll('body *')) {
    if (each.closest('.katex, svg, .vue-flow, .sr-only, .diagram-frame, datalist, option')) continue
    const style = getComputedStyle(each)
    const box = each.getBoundingClientRect()
    if (style.visibility === 'hidden' || style.display === 'contents') continue
    if (box.width === 0 || box.height === 0) continue
    const hidden = ['auto', 'scroll'].includes(style.overflowX) ? each.scrollWidth - each.clientWidth : 0
    if (hidden > 1 && !each.matches(SIDEWAYS)) found.push(`scrolls sideways by ${hidden}: ${name(each)}`)
    let holder = each.parentElement
    let isCut = style.position === 'absolute' || style.position === 'fixed'
    if (isCut) {
      if (box.right > width + 1 || box.left < -1) found.push(`outside of the screen: ${name(each)}`)
      continue
    }
    for (; holder && holder !== document.body && !isCut; holder = holder.parentElement) {
      const around = getComputedStyle(holder)
      if (cuts(around)) {
        isCut = true
        const out = Math.round(box.right - holder.getBoundingClientRect().right)
        const isEllipsis = around.textOverflow === 'ellipsis' || around.webkitLineClamp !== 'none'
        const isScrolled = ['auto', 'scroll'].includes(around.overflowX) && holder.matches(SIDEWAYS)
        if (out > 1 && !isEllipsis && !isScrolled) found.push(`cut by ${out}: ${name(each)}`)
        break
      }
      if (around.display.startsWith('inline') || around.display === 'contents') continue
      const end = holder.getBoundingClientRect().right
      if (box.right > end + 2 && parseFloat(style.marginRight) >= 0) {
        found.push(`sticks out by ${Math.round(box.right - end)}: ${name(each)} of ${name(holder)}`)
        break
      }
    }
    if (!isCut && (box.right > width + 1 || box.left < -1)) found.push(`outside of the screen: ${name(each)}`)
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement
    if (!node.data.trim()) continue
    if (parent?.closest('.katex, .sr-only, style, script, svg, option') !== null) continue
    const box = parent.getBoundingClientRect()
    if (box.width === 0 || getComputedStyle(parent).visibility === 'hidden') continue
    const drawn = parent.offsetWidth > 20 ? box.width / parent.offsetWidth : 1
    const scale = Math.abs(drawn - 1) < 0.05 ? 1 : drawn // The widths are rounded.
    const size = parseFloat(getComputedStyle(parent).fontSize) * scale
    if (size < 10.95) found.push(`text of ${size.toFixed(1)} px: ${name(parent)}`)
    if (!parent.closest('td, th')) continue
    for (const word of node.data.matchAll(/[\\w.,-]+/g)) {
      const range = document.createRange()
      range.setStart(node, word.index)
      range.setEnd(node, word.index + word[0].length)
      const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)))
      if (lines.size > 1) found.push(`a broken word: ${word[0]}`)
    }
    for (const word of node.data.matchAll(/[\\u4e00-\\u9fff]{3,}/g)) {
      const range = document.createRange()
      range.setStart(node, word.index)
      range.setEnd(node, word.index + word[0].length)
      const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)))
      if (lines.size === word[0].length) found.push(`one character in a line: ${word[0]}`)
    }
  }
  // A column of a table that scrolls has room for a few words in a line.
  for (const cell of document.querySelectorAll('td, th')) {
    const range = document.createRange()
    range.selectNodeContents(cell)
    const words = [...range.getClientRects()].filter((each) => each.height > 8)
    const bottoms = words.map((each) => each.bottom).sort((one, other) => one - other)
    const lines = bottoms.filter((each, index) => index === 0 || each - bottoms[index - 1] > 6).length
    const letters = [...cell.textContent.trim()].reduce((sum, each) => sum + (each > '\\u2e7f' ? 2 : 1), 0)
    if (letters >= 12 && lines > letters / 12 + 2) {
      found.push(`${letters} letters in ${lines} lines: ${name(cell)}`)
    }
  }
  return [...new Set(found)].slice(0, 5)
}"""

IS_SCROLLED = """() => [...document.querySelectorAll('table')].some(
  (table) => table.scrollWidth > table.parentElement.clientWidth + 1
)"""
ROUTES = """() => document.querySelector('#app').__vue_app__.config.globalProperties.$router.getRoutes()
  .filter((each) => !each.redirect && each.children.length === 0).map((each) => each.path)"""

IS_READY = """() => !document.querySelector('[aria-busy=true], .animate-pulse, [data-loading]')"""


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(when=When(system="Split the goal"), reply=[Text(text=PLAN)]),
            Rule(reply=[Text(text=WIDE)]),
        ]
    )


@pytest.fixture(scope="module")
def owner(server: ServerProcess, browser: Browser) -> Iterator[Person]:
    """An administrator, who sees every page and owns what is on them."""
    new = Person(server, browser)
    with new.sign_in_as_admin() as admin:
        body = {"permission_level": 4}
        admin.put(f"/auth/users/{new.get('/auth/me')['id']}", json=body).raise_for_status()
    yield new
    new.api.close()


@pytest.fixture(scope="module")
def pages(owner: Person) -> dict[str, str]:
    """For each route with a parameter, a page with long content."""
    chat = owner.post("/conversations", {"title": LONG})["id"]
    owner.post("/conversations", {"title": SPACED})
    for content in (f"{LONG} {ADDRESS}", SPACED):
        owner.post("/messages", {"conversation_id": chat, "content": content, "tools": False})
    seats = [{"name": f"{LONG[:30]}{n}", "role": SPACED, "system_prompt": "Speak."} for n in range(10)]
    room = owner.post(
        "/chat-rooms",
        {
            "title": LONG,
            "task": f"{SPACED} {ADDRESS}",
            "policy": "parallel",
            "stop": {"rounds": 1},
            "agents": seats,
        },
    )["id"]
    owner.post(f"/chat-rooms/{room}/messages", {"content": f"{LONG} {ADDRESS}"})
    run = owner.post(f"/chat-rooms/{room}/start")["id"]
    steps = [
        {
            "id": f"s{n}",
            "name": f"{LONG[:50]}{n}",
            "goal": SPACED,
            "depends_on": [f"s{n - 1}"] if n % 4 else [],
        }
        for n in range(12)
    ]
    task = owner.post("/tasks", {"name": LONG, "goal": f"{SPACED} {ADDRESS}", "steps": steps})["id"]
    task_run = owner.post(f"/tasks/{task}/execute")["id"]
    agent = owner.post("/agents", {"name": LONG, "role": SPACED, "system_prompt": WIDE})["id"]
    fact = owner.post("/memories", {"text": WIDE, "subject": SPACED, "predicate": "knows", "object": LONG})
    base = owner.post("/knowledge", {"name": LONG[:80], "description": WIDE})["id"]
    given = {"name": f"{LONG}.md", "text": f"# {SPACED}\n\n{WIDE}"}
    document = owner.post(f"/knowledge/{base}/documents", given)["items"][0]["id"]
    deck = {"type": "ppt", "name": LONG, "content": f"# {SPACED}\n\n---\n\n{WIDE}", "conversation_id": chat}
    artifact = owner.post("/artifacts", deck)["id"]
    prompt = owner.post("/prompts", {"name": LONG[:40].lower(), "title": SPACED, "content": WIDE})["id"]
    way = {"description": f"{SPACED} {LONG}", "tools": [LONG], "decision_points": [LONG]}
    pattern = owner.post(
        "/patterns",
        {"name": LONG, "description": WIDE[:500], "goal": f"Make a report {LONG}", "steps": [way]},
    )["id"]
    address = owner.server.url
    provider = owner.post(
        "/providers",
        {"name": LONG, "provider_type": "openai_compatible", "base_url": f"{address}/{LONG}", "api_key": "k"},
    )["id"]
    server = {"name": LONG[:20].lower(), "transport": "http", "url": f"{address}/{LONG}", "scope": "tenant"}
    owner.post("/mcp/servers", server)
    owner.post("/keys", {"name": LONG, "scopes": ["chat"]})
    project = owner.post("/projects", {"name": LONG})["id"]
    skill = owner.post(
        "/skills",
        {"name": LONG[:64].lower(), "description": WIDE[:1_000], "scope": "project", "project_id": project}
        | {"content": WIDE, "tags": [LONG[:90]], "trigger_patterns": [{"pattern": LONG[:150]}]},
    )["id"]
    owner.put(
        "/permissions/rules?scope=user",
        [{"tool": "shell_execute", "action": "ask", "pattern": f"{LONG} {LONG}"}],
    )
    owner.api.post("/files", files={"file": (f"{LONG}.md", WIDE.encode())}).raise_for_status()
    owner.wait_for(run, "completed")
    owner.wait_for(task_run, "completed")
    link = owner.post("/shares", {"kind": "conversation", "subject_id": chat})["token"]
    return {
        "/chat/:id": f"/chat/{chat}",
        "/rooms/:id": f"/rooms/{room}",
        "/tasks/:id": f"/tasks/{task}",
        "/runs/:id": f"/runs/{run}",
        "/agents/:id(\\d+)": f"/agents/{agent}",
        "/memories/:id": f"/memories/{fact['id']}",
        "/graph/:id": f"/graph/{fact['entities'][1]['id']}",
        "/knowledge/:id": f"/knowledge/{base}",
        "/knowledge/:id/:documentId": f"/knowledge/{base}/{document}",
        "/artifacts/:id": f"/artifacts/{artifact}",
        "/prompts/:id": f"/prompts/{prompt}",
        "/patterns/:id": f"/patterns/{pattern}",
        "/tools/skills/:id": f"/tools/skills/{skill}",
        "/tools/mcp/:name": f"/tools/mcp/{server['name']}",
        "/providers/:id(\\d+)": f"/providers/{provider}",
        "/files/:path(.*)?": f"/files?open={LONG}.md",
        "/s/:token": f"/s/{link}",
        "/:path(.*)*": "/no-such-page",
    }


def open_details(page: Page) -> None:
    page.get_by_role("button", name="Details").click()


def open_step(page: Page) -> None:
    page.get_by_role("button", name="Graph", exact=True).click()
    expect(page.get_by_role("group", name="The steps as a graph")).to_be_visible()


TABLES = ("/admin/audit", "/admin/users", "/settings/keys", "/tools/rules")
ALSO: dict[str, Callable[[Page], None]] = {"/chat/:id": open_details, "/tasks/:id": open_step}
"""What is opened on a page besides what it shows at first."""


def test_no_page_is_wider_than_the_screen(owner: Person, pages: dict[str, str]) -> None:
    problems: list[str] = []
    with owner.tab() as tab:
        tab.expected_problems += ["404", "502", "503"]
        page = tab.open()
        routes = page.evaluate(ROUTES)
        assert len(routes) > 35
        assert {each for each in routes if ":" in each} == set(pages), (
            "a page with a parameter needs content here"
        )

        def look(route: str, what: str) -> None:
            for width, height in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_timeout(120)
                problems.extend(f"{route}{what} at {width}: {each}" for each in page.evaluate(FIND_WIDE))
                name = route.strip("/").replace("/", "-").replace(":", "")
                take_screenshots(tab, f"every-{name}{what}-{width}")

        for route in routes:
            page.goto(f"{tab.url}/ui{pages.get(route, route)}", wait_until="networkidle", timeout=30_000)
            page.wait_for_function(IS_READY)
            look(route, "")
            if also := ALSO.get(route):
                also(page)
                look(route, "+")
        # Chinese words may break anywhere, so that a narrow column has one character in a line.
        page.evaluate("localStorage.setItem('luxx.language', 'zh')")
        page.set_viewport_size({"width": 820, "height": WIDTHS[820]})
        for route in TABLES:
            page.goto(f"{tab.url}/ui{route}", wait_until="networkidle", timeout=30_000)
            expect(page.get_by_role("table").or_(page.locator("dl")).first).to_be_visible()
            problems.extend(f"{route} in Chinese: {each}" for each in page.evaluate(FIND_WIDE))
            if page.evaluate(IS_SCROLLED):
                problems.append(f"{route} has a table that is wider than its place")
    with open_tab(owner.browser, owner.server.url) as tab:
        page = tab.open("/ui/sign-in")
        page.wait_for_function(IS_READY)
        for width, height in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": height})
            problems.extend(f"sign-in at {width}: {each}" for each in page.evaluate(FIND_WIDE))
    assert not problems, "\n".join(problems)
