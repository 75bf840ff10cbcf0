"""Artifacts that models make and change: cards in chats, rooms and tasks, and what an open pane follows."""

from typing import Any

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, Page, expect

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from luxx.providers.scripted.script import ReplyEvent
from web_ui.axe import check_both_screens, check_both_themes
from web_ui.browser import LAPTOP, open_tab
from web_ui.person import Person
from web_ui.test_artifacts import DECK, mode

pytestmark = pytest.mark.heavy

IS_WITHIN = "card => card.getBoundingClientRect().right <= card.parentElement.getBoundingClientRect().right"
JSON = {"accept": "application/json"}
MADE = Call(name="create_artifact", arguments={"type": "ppt", "name": "Rye bread", "content": DECK})
EDITS: dict[str, list[ReplyEvent]] = {"change one": [], "change two": []}
"""The calls of the answers, which name an artifact that exists only when a test has made it."""


def with_calls(user: str, calls: list[ReplyEvent], system: str | None = None) -> list[Rule]:
    return [
        Rule(when=When(user=user, system=system, has_tool_result=False), reply=calls),
        Rule(when=When(user=user, system=system, has_tool_result=True), reply=[Text(text="It is ready.")]),
    ]


@pytest.fixture(scope="module")
def script() -> Script:
    answers: dict[str, list[ReplyEvent]] = {**EDITS, "slides": [MADE]}
    rules = [rule for user, calls in answers.items() for rule in with_calls(user, calls)]
    return Script(rules=[*rules, Rule(when=When(user="write it anew"), reply=[Text(text="# Rye")])])


def edit(artifact_id: str, gate: str, **arguments: Any) -> list[ReplyEvent]:
    return [Gate(name=gate), Call(name="edit_artifact", arguments={"artifact_id": artifact_id, **arguments})]


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def test_cards_and_the_open_pane_follow_what_a_model_changes(
    person: Person, browser: Browser, server: ServerProcess, models: ScriptedProvider
) -> None:
    chat = person.post("/conversations", {"title": "Bread"})["id"]
    message = {"conversation_id": chat, "content": "make slides", "tools": True}
    person.post("/messages", message)
    (deck,) = person.get("/artifacts")["items"]
    address = f"/ui/chat/{chat}"
    with (
        person.profile() as profile,
        open_tab(browser, server.url, profile=profile) as tab,
        open_tab(browser, server.url, profile=profile) as second,
    ):
        page = tab.open(address)
        cards = page.get_by_role("link", name="Rye bread")
        expect(cards).to_contain_text("Slides · 3 slides · version 1")
        expect(cards.locator("img")).to_have_js_property("naturalWidth", 1280)
        expect(page.get_by_role("button", name="Rye-bread.pptx")).to_have_count(0)
        check_both_screens(tab, "artifact-card")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        page.wait_for_timeout(200)
        cards.focus()
        page.keyboard.press("Enter")
        pages = page.get_by_role("list", name="Pages")
        expect(pages.get_by_role("button")).to_have_count(3)
        other = second.open(page.url.removeprefix(server.url))
        expect(other.get_by_role("list", name="Pages")).to_be_visible()

        # Another page than the one in whose source somebody types.
        pages.get_by_role("button").nth(1).click()
        mode(page, "Source")
        field = page.get_by_label("Source of page 2")
        field.fill("## Ingredients\n\n- oats")
        EDITS["change one"] += edit(deck["id"], "one", page=1, old_string="How we", new_string="How they")
        stream = {"conversation_id": chat, "content": "change one", "tools": True}
        person.api.post("/messages/stream", json=stream, headers=JSON).raise_for_status()
        expect(page.get_by_role("article", name="Answer")).to_have_count(2)
        field.focus()
        tab.expected_problems.append("409")  # It may be saved before the page has the new version.
        models.release("one")
        expect(cards.last).to_contain_text("version 2")
        expect(page.get_by_role("heading", name="Rye bread").locator("..")).to_contain_text("version 2")
        expect(field).to_have_value("## Ingredients\n\n- oats")
        expect(field).to_be_focused()
        expect(page.get_by_text("Somebody else saved this page meanwhile.")).to_have_count(0)
        page.keyboard.press("Control+s")
        expect(page.get_by_text("Saved as version 3.")).to_be_visible()
        content = person.get(f"/artifacts/{deck['id']}/content")["content"]
        assert "How they bake it" in content
        assert "- oats" in content

        # The same page.
        field.fill("## Ingredients\n\n- oats\n- milk")
        EDITS["change two"] += edit(
            deck["id"], "two", page=2, content="## Ingredients\n\n- spelt", base_version=3
        )
        person.api.post(
            "/messages/stream", json=stream | {"content": "change two"}, headers=JSON
        ).raise_for_status()
        expect(page.get_by_role("article", name="Answer")).to_have_count(3)
        models.release("two")
        expect(page.get_by_text("Somebody else saved this page meanwhile.")).to_be_visible()
        expect(page.get_by_label("Yours", exact=True)).to_have_value("## Ingredients\n\n- oats\n- milk")
        expect(page.get_by_label("The newest version", exact=True)).to_contain_text("- spelt")
        check_both_themes(tab, "artifact-changed-by-a-model")
        page.get_by_role("button", name="Save mine").click()
        expect(page.get_by_text("Saved as version 5.")).to_be_visible()

        expect(other.get_by_role("link", name="Rye bread")).to_have_count(3)
        for each in (page, other):
            each.reload()
            shown = each.get_by_role("link", name="Rye bread")
            expect(shown).to_have_count(3)
            for number, card in zip((1, 2, 4), shown.all(), strict=True):
                expect(card).to_contain_text(f"version {number}")
            expect(each.get_by_role("heading", name="Rye bread").locator("..")).to_contain_text("version 5")


def test_cards_of_rooms_and_of_steps_lead_to_the_artifact(person: Person) -> None:
    seat = {"name": "Baker", "tools": ["create_artifact"]}
    body = {"title": "Bakery", "task": "make slides", "agents": [seat], "max_rounds": 1}
    room = person.post("/chat-rooms", body)["id"]
    steps = [{"id": "s1", "name": "Draw", "goal": "make slides"}]
    task = person.post("/tasks", {"name": "Talk", "goal": "Talk", "steps": steps})["id"]
    with person.tab() as tab:
        person.api.post(f"/chat-rooms/{room}/start", headers=JSON).raise_for_status()
        page = tab.open(f"/ui/rooms/{room}")
        card = page.get_by_role("link", name="Rye bread")
        thinking = page.get_by_title("Show thinking and tools")
        expect(card.or_(thinking).first).to_be_visible()
        if thinking.count():
            thinking.first.click()
        expect(card.first).to_contain_text("Slides · 3 slides · version 1")
        check_both_themes(tab, "artifact-card-room")
        card.first.click()
        expect(page.get_by_role("link", name="Open the room")).to_be_visible()

        person.api.post(f"/tasks/{task}/execute", headers=JSON).raise_for_status()
        page.goto(f"{tab.url}/ui/tasks/{task}")
        page.get_by_role("group", name="The steps as a graph").get_by_role("button", name="Draw").click()
        expect(card.first).to_contain_text("Slides · 3 slides · version 1")
        assert card.first.evaluate(IS_WITHIN)
        check_both_themes(tab, "artifact-card-task")
        card.first.click()
        expect(page.get_by_role("list", name="Pages").get_by_role("button")).to_have_count(3)
        expect(page.get_by_role("link", name="Open the task")).to_be_visible()


def test_the_notice_of_a_run_leads_to_what_it_made(person: Person, models: ScriptedProvider) -> None:
    chat = person.post("/conversations", {"title": "Bread"})["id"]
    with person.tab() as tab:
        page = tab.open("/ui/agents")
        expect(page.get_by_role("link", name="Tasks")).to_be_visible()
        tray = page.get_by_role("region", name="Notices")
        stream = {"conversation_id": chat, "content": "make slides", "tools": True}
        person.api.post("/messages/stream", json=stream, headers=JSON).raise_for_status()
        expect(tray).to_contain_text("Bread: The artifact is ready.")
        check_both_screens(tab, "artifact-notice")
        tray.get_by_role("link", name="Open").click()
        expect(page.get_by_role("heading", name="Rye bread")).to_be_visible()
        assert f"/ui/chat/{chat}?artifact=" in page.url

        page.goto(f"{tab.url}/ui/agents")
        expect(page.get_by_role("link", name="Tasks")).to_be_visible()
        deck = person.get("/artifacts")["items"][0]["id"]
        body = {"page_index": 2, "instructions": "write it anew"}
        person.api.post(f"/artifacts/{deck}/regenerate", json=body, headers=JSON).raise_for_status()
        expect(tray).to_contain_text("Rye bread: The page is written.")
        tray.get_by_role("link", name="Open").click()
        expect(page.get_by_role("heading", name="Rye bread")).to_contain_text("Rye bread")
        assert page.url.endswith(f"/ui/artifacts/{deck}")
