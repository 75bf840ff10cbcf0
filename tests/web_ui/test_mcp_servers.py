"""The pages of MCP servers: adding one, its tools, trying one, a rule, switching off, deleting; a sign-in."""

import re
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote

import pytest
from mcp_servers.asking_server import add_asking_tools
from mcp_servers.oauth_server import OAuthServer
from mcp_servers.remote_server import RemoteMcp
from playwright.sync_api import Page, expect

from luxx.providers.scripted import Call, Rule, Script, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import PHONE, Tab, open_tab
from web_ui.person import PASSWORD, Person
from web_ui.test_chat_runs import choose_all_tools

pytestmark = pytest.mark.heavy
ASKS = Call(name="mcp__default_staff__who_am_i", arguments={})
BOOKS = Call(name="mcp__default_trips__book", arguments={})


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(when=When(user="^Book", has_tool_result=False), reply=[BOOKS]),
            Rule(when=When(has_tool_result=False), reply=[ASKS]),
            Rule(reply=[Text(text="Done.")]),
        ]
    )


@pytest.fixture(scope="module")
def notes() -> Iterator[RemoteMcp]:
    with RemoteMcp() as running:
        running.add_tools(partial(add_asking_tools, heard=running.heard))
        yield running


def allow(person: Person, port: int) -> None:
    """Lets the server under test reach a port of this machine."""
    with person.sign_in_as_admin() as admin:
        known = admin.get("/admin/allowed-hosts").raise_for_status().json()["data"]["hosts"]
        hosts = [entry["host"] if isinstance(entry, dict) else entry for entry in known]
        admin.put("/admin/allowed-hosts", json={"hosts": [*hosts, f"127.0.0.1:{port}"]}).raise_for_status()


def open_tool(page: Page, name: str) -> None:
    page.get_by_role("region", name="Tools", exact=True).get_by_role("button", name=name).click()


def test_a_server_is_added_tried_ruled_switched_off_and_deleted(person: Person, notes: RemoteMcp) -> None:
    allow(person, notes.port)
    with person.tab() as tab:
        tab.expected_problems.append("status of 4")
        page = tab.open("/ui/tools/mcp")
        expect(page.get_by_text("No MCP servers")).to_be_visible()
        page.get_by_role("button", name="Add Linear").click()
        expect(page.get_by_label("Address")).to_have_value("https://mcp.linear.app/mcp")
        page.go_back()
        page.get_by_role("button", name="Add a server").click()
        page.get_by_label("Address").fill(f"{notes.url}/mcp")
        expect(page.get_by_label("Name", exact=True)).to_have_value("server")
        page.get_by_label("Name", exact=True).fill("No Name!")
        page.get_by_role("button", name="Add and connect").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Name", exact=True).fill("notes")
        check_both_screens(tab, "mcp-new")
        page.get_by_role("button", name="Add and connect").click()
        expect(page.get_by_role("main").or_(page.locator("body")).get_by_text("Ready").first).to_be_visible()
        assert person.get("/mcp/servers/notes")["tools"]
        open_tool(page, "add")
        trying = page.get_by_role("form", name="Try it")
        trying.get_by_label("a (integer)").fill("20")
        trying.get_by_role("button", name="Write the arguments as JSON").click()
        written = trying.get_by_label("Arguments as JSON")
        expect(written).to_have_value('{\n  "a": 20\n}')
        written.fill("[1]")
        trying.get_by_role("button", name="Try it").click()
        expect(trying.get_by_role("alert")).to_contain_text("JSON object")
        written.fill('{"a": 20, "b": 22}')
        trying.get_by_role("button", name="Try it").click()
        expect(page.get_by_role("region", name="Result")).to_contain_text("42")
        check_both_screens(tab, "mcp-server")
        page.get_by_label("When a model calls it").select_option("deny")
        expect(page.get_by_text("The rule for add is saved")).to_be_visible()
        [rule] = person.get("/permissions/rules")
        assert (rule["tool"].endswith("_notes__add"), rule["action"]) == (True, "deny")
        page.get_by_label("When a model calls it").select_option("default")
        expect(page.get_by_label("When a model calls it")).to_have_value("default")
        expect(page.get_by_label("When a model calls it")).to_be_enabled()
        assert person.get("/permissions/rules") == []
        page.get_by_role("button", name="Switch off").click()
        expect(page.get_by_text("Switched off")).to_be_visible()
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        page.get_by_role("link", name="Back").click()
        expect(page.get_by_role("list", name="MCP servers")).to_contain_text("Switched off")
        check_both_screens(tab, "mcp-servers")
        page.get_by_role("link", name="notes").click()
        page.get_by_role("button", name="Delete notes").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_text("No MCP servers")).to_be_visible()
        assert person.get("/mcp/servers")["items"] == []


def test_servers_say_where_they_run_and_why_not_in_the_language_of_the_page(
    person: Person, notes: RemoteMcp
) -> None:
    with RemoteMcp() as gone:
        port, url = gone.port, f"{gone.url}/mcp"
    allow(person, port)
    allow(person, notes.port)
    person.post("/mcp/servers", {"name": "kept", "transport": "http", "url": f"{notes.url}/old/mcp"})
    person.post("/mcp/servers/kept/test")
    person.post("/mcp/servers", {"name": "gone", "transport": "http", "url": url})
    with person.tab(PHONE) as tab:
        tab.page.add_init_script("localStorage.setItem('luxx.language', 'zh')")
        page = tab.open("/ui/tools/mcp")
        expect(page.get_by_role("listitem").filter(has_text="gone")).to_contain_text("无法使用")
        process = person.get("/mcp/servers/kept")["owner"]
        expect(page.get_by_role("listitem").filter(has_text="kept")).to_contain_text(
            f"它的连接在进程 {process} 中。"
        )
        check_both_screens(tab, "mcp-zh")
        page.get_by_role("link", name="gone").click()
        expect(page.get_by_text("没有工具")).to_be_visible()


@pytest.fixture(scope="module")
def people() -> Iterator[OAuthServer]:
    """A server at which each person signs in."""
    with OAuthServer() as running:
        yield running


def test_a_person_signs_in_there_and_comes_back(person: Person, people: OAuthServer) -> None:
    allow(person, people.port)
    with person.tab() as tab:
        tab.expected_problems += ["request elsewhere", "status of 4"]
        page = tab.open("/ui/tools/mcp?new")
        page.get_by_label("Address").fill(people.url)
        page.get_by_label("Name", exact=True).fill("people")
        page.get_by_role("button", name="Add and connect").click()
        expect(page.get_by_role("button", name="Sign in")).to_be_visible()
        check_both_screens(tab, "mcp-sign-in")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("You are signed in to people")).to_be_visible()
        expect(page).to_have_url(f"{tab.url}/ui/tools/mcp/people")
        open_tool(page, "who_am_i")
        page.get_by_role("form", name="Try it").get_by_role("button", name="Try it").click()
        expect(page.get_by_role("region", name="Result")).to_contain_text("you are ann")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_text("Needs your sign-in")).to_be_visible()


def test_the_page_of_a_sign_in_keeps_its_code_to_itself(person: Person, people: OAuthServer) -> None:
    allow(person, people.port)
    server = {"name": "people", "transport": "http", "url": people.url, "credential": "per_user"}
    person.post("/mcp/servers", server)
    answer = people.agree(person.post("/mcp/servers/people/connect")["authorization_url"])
    query = "&".join(f"{name}={quote(value)}" for name, value in answer.items())
    with open_tab(person.browser, person.server.url) as tab:
        tab.expected_problems.append("status of 4")
        page = tab.open(f"/ui/mcp/callback?{query}")
        expect(page.get_by_label("Name", exact=True)).to_be_visible()
        expect(page.get_by_text("Sign in to Luxx first")).to_be_visible()
        stored = (
            "() => JSON.stringify([{...localStorage}, {...sessionStorage}, history.state, location.href])"
        )
        for secret in answer["code"], answer["state"]:
            assert secret not in page.evaluate(stored)
        page.get_by_label("Name", exact=True).fill(person.name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page.get_by_role("heading", name="You are signed in to people")).to_be_visible()
        check_both_screens(tab, "mcp-callback")
        assert person.get("/mcp/servers/people")["status"] == "ready"
        for wrong, said in (
            (query, "has been completed already"),
            ("state=another&code=x", "This sign-in was not begun by you, or it is over"),
            ("state=x&error=access_denied", "the access was refused"),
            ("", "There is no sign-in to complete"),
        ):
            page = tab.open(f"/ui/mcp/callback?{wrong}")
            expect(page.get_by_text(said)).to_be_visible()
            expect(page).to_have_url(re.compile("/ui/mcp/callback[?]?$"))
        page.get_by_role("button", name="To the MCP servers").click()
        expect(page.get_by_role("list", name="MCP servers")).to_contain_text("people")


def test_a_chat_that_needs_a_sign_in_asks_for_it_at_its_place(person: Person, people: OAuthServer) -> None:
    allow(person, people.port)
    server = {"name": "staff", "transport": "http", "url": people.url, "credential": "per_user"}
    with person.sign_in_as_admin() as admin:
        admin.post("/mcp/servers", json=server | {"scope": "tenant", "level": 2}).raise_for_status()
        try:
            with person.tab() as tab:
                tab.expected_problems += ["request elsewhere", "status of 4"]
                sign_in_from_a_chat(tab, person, people)
        finally:
            admin.delete("/mcp/servers/staff").raise_for_status()


def sign_in_from_a_chat(tab: Tab, person: Person, people: OAuthServer) -> None:
    # The tools of a server at which each person signs in are known after the first sign-in.
    begun = person.post("/mcp/servers/staff/connect")["authorization_url"]
    person.post("/mcp/oauth/complete", people.agree(begun))
    person.post("/mcp/servers/staff/disconnect")
    # The second question would be preceded by one about what the first answer brought in.
    person.put("/permissions/rules?scope=user", [{"tool": ASKS.name, "action": "allow"}])
    page = tab.open("/ui/chat?new")
    choose_all_tools(page)
    for number, act in enumerate(("Go on without it", "Sign in")):
        page.get_by_label("Message", exact=True).fill("Who am I?")
        page.keyboard.press("Enter")
        question = page.get_by_role("region", name="Sign in to staff")
        expect(question).to_be_visible()
        if number == 0:
            check_both_screens(tab, "mcp-question")
        question.get_by_role("button", name=act, exact=True).click()
        answers = page.get_by_role("article", name="Answer").filter(has_text="Done.")
        expect(answers).to_have_count(number + 1)
    expect(page).to_have_url(re.compile("/ui/chat/"))
    expect(page.get_by_role("button", name=re.compile("who_am_i .* Done$"))).to_be_visible()


def test_a_server_that_asks_gets_what_its_user_writes(person: Person, notes: RemoteMcp) -> None:
    allow(person, notes.port)
    with person.sign_in_as_admin() as admin:
        server = {
            "name": "trips",
            "transport": "http",
            "url": f"{notes.url}/mcp",
            "scope": "tenant",
            "level": 2,
        }
        admin.post("/mcp/servers", json=server).raise_for_status()
        try:
            with person.tab() as tab:
                tab.expected_problems.append("status of 4")
                book_in_a_chat(tab, person, notes)
        finally:
            admin.delete("/mcp/servers/trips").raise_for_status()


def book_in_a_chat(tab: Tab, person: Person, notes: RemoteMcp) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": BOOKS.name, "action": "allow"}])
    page = tab.open("/ui/chat?new")
    choose_all_tools(page)
    for number, act in enumerate(("Decline", "Send to the server")):
        page.get_by_label("Message", exact=True).fill("Book a trip")
        page.keyboard.press("Enter")
        question = page.get_by_role("region", name="Where do you want to go?")
        expect(question).to_contain_text("goes to trips only")
        if number == 1:
            expect(question.get_by_label("seat")).to_have_value("aisle")
            question.get_by_label("note").fill("to the sea")
            question.get_by_label("people").fill("20")
            question.get_by_role("button", name=act).click()
            expect(question.get_by_role("alert")).to_contain_text("people")
            question.get_by_label("people").fill("2")
            check_both_screens(tab, "mcp-elicitation")
        question.get_by_role("button", name=act, exact=True).click()
        answers = page.get_by_role("article", name="Answer").filter(has_text="Done.")
        expect(answers).to_have_count(number + 1)
    assert notes.heard == [
        ("decline", None),
        ("accept", {"note": "to the sea", "people": 2, "seat": "aisle"}),
    ]
