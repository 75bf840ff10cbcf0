"""Prompts in the web UI: the library, slash commands, and a message that becomes a prompt."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person
from web_ui.scripts import SCRIPT

pytestmark = pytest.mark.heavy

TRANSLATE = {
    "name": "translate",
    "title": "Translate a text",
    "content": "Into {{language:French}}: {{text}}",
}


@pytest.fixture(scope="module")
def script() -> Script:
    of_skill = Rule(when=When(user="has activated the skill"), reply=[Text(text="Done.")])
    return Script(rules=[*SCRIPT.rules, of_skill])


def test_a_prompt_is_created_changed_and_deleted_and_a_taken_name_loses_nothing_typed(person: Person) -> None:
    person.post("/prompts", TRANSLATE)
    with person.tab() as tab:
        page = tab.open("/ui/prompts")
        expect(page.get_by_text("Texts that you use again")).to_be_visible()
        page.get_by_role("button", name="Create a prompt").click()
        page.get_by_label("Name").fill("translate")
        page.get_by_label("Text", exact=True).fill("Review {{text}}")
        tab.expected_problems += ["409", "400"]
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("you already have a prompt named 'translate'")).to_be_visible()
        page.get_by_label("Name").fill("Two words")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("lowercase letters, digits and hyphens, not beginning")).to_be_visible()
        expect(page.get_by_label("Text", exact=True)).to_have_value("Review {{text}}")
        check_both_themes(tab, "prompts-error")
        page.get_by_label("Name").fill("review")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", name="/review")).to_be_visible()
        page.get_by_label("Title").fill("Review a text")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("link", name="/review Review a text")).to_be_visible()
        expect(page.get_by_label("Share with everybody")).to_have_count(0)
        page.get_by_label("Search prompts").fill("translate")
        expect(page.get_by_role("link", name="/review")).to_have_count(0)
        page.get_by_label("Search prompts").fill("")
        page.get_by_role("button", name="Delete the prompt").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page).to_have_url(f"{tab.url}/ui/prompts")
        expect(page.get_by_role("link", name="/review")).to_have_count(0)
        assert [each["name"] for each in person.get("/prompts")["items"]] == ["translate"]


def test_a_slash_offers_commands_and_prompts_and_sends_nothing(person: Person) -> None:
    person.post("/prompts", TRANSLATE)
    with person.tab() as tab:
        page = tab.open()
        field = page.get_by_label("Message", exact=True)
        field.press_sequentially("/")
        options = page.get_by_role("listbox", name="Commands").get_by_role("option")
        expect(options.first).to_contain_text("/new")
        expect(page.get_by_role("option", name="/translate")).to_be_visible()
        check_both_themes(tab, "slash-list")
        page.keyboard.press("ArrowUp")
        expect(options.last).to_have_attribute("aria-selected", "true")
        expect(field).to_have_attribute("aria-activedescendant", options.last.get_attribute("id") or "")
        page.keyboard.press("Escape")
        expect(options).to_have_count(0)
        field.press_sequentially("tra")
        expect(options).to_have_count(0)
        field.fill("")
        field.press_sequentially("/tra")
        expect(options).to_have_count(1)
        field.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Translate a text")
        expect(dialog.get_by_label("language")).to_have_value("French")
        expect(dialog.get_by_role("button", name="Insert")).to_be_disabled()
        dialog.get_by_label("text").fill("hello")
        check_both_themes(tab, "slash-form")
        dialog.get_by_role("button", name="Insert").click()
        expect(field).to_have_value("Into French: hello")
        expect(field).to_be_focused()
        assert person.get("/conversations")["total"] == 0
        field.fill("/mod")
        page.keyboard.press("Tab")
        expect(page.get_by_role("dialog", name="Model")).to_be_visible()
        page.keyboard.press("Escape")
        field.fill("/nothing-like-this")
        expect(options).to_have_count(0)


def test_a_command_copies_the_conversation_and_a_message_becomes_a_prompt(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open()
        field = page.get_by_label("Message", exact=True)
        field.fill("hello")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Hello to you")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        field.press_sequentially("/fork")
        expect(page.get_by_role("option", name="/fork")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page.get_by_text("This is a copy")).to_be_visible()
        assert person.get("/conversations")["total"] == 2
        message = page.get_by_role("article", name="You").first
        message.hover()
        message.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Save as prompt").click()
        expect(page.get_by_label("Text", exact=True)).to_have_value("hello")
        page.get_by_label("Name").fill("greet")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", name="/greet")).to_be_visible()
        assert person.get("/prompts")["items"][0]["content"] == "hello"


def test_the_library_on_a_phone(person: Person) -> None:
    with person.tab(size=PHONE) as tab:
        page = tab.open("/ui/prompts")
        expect(page.get_by_role("button", name="Create a prompt")).to_be_visible()
        check_both_themes(tab, "prompts-phone-empty")
        person.post("/prompts", TRANSLATE)
        page.reload()
        check_both_themes(tab, "prompts-phone-list")
        page.get_by_role("link", name="/translate").click()
        expect(page.get_by_label("Name")).to_have_value("translate")
        check_both_themes(tab, "prompts-phone-edit")
        page.get_by_role("link", name="Back").click()
        expect(page.get_by_role("link", name="/translate")).to_be_visible()


def test_a_slash_activates_a_skill_for_one_message(person: Person) -> None:
    name = f"minutes-{person.name}"
    body = {"name": name, "description": "Writes minutes.", "scope": "tenant", "content": "Be brief."}
    with person.sign_in_as_admin() as admin:
        skill = admin.post("/skills", json=body).raise_for_status().json()["data"]
        admin.post(f"/skills/{skill['id']}/review", json={}).raise_for_status()
        with person.tab() as tab:
            page = tab.open()
            field = page.get_by_label("Message", exact=True)
            field.press_sequentially(f"/{name}")
            page.get_by_role("option", name=f"/{name}").click()
            chips = page.get_by_role("list", name="Skills of this message")
            expect(chips.get_by_role("listitem")).to_have_text([name])
            expect(field).to_have_value("")
            page.reload()
            expect(chips.get_by_role("listitem")).to_have_text([name])
            field.fill("Hello")
            field.press("Enter")
            expect(page.get_by_role("article", name="Answer").get_by_text("Done.")).to_be_visible()
            expect(chips).to_have_count(0)
            expect(page.get_by_text(f"You activated the skill {name}.")).to_be_visible()
            check_both_themes(tab, "skill-of-a-message")
            # An edited message is answered with the same skills.
            message = page.get_by_role("article", name="You")
            message.hover()
            message.get_by_role("button", name="Edit").click()
            message.get_by_label("Edit").fill("Hello again")
            message.get_by_role("button", name="Save and answer").click()
            expect(message.get_by_text("2 of 2")).to_be_visible()
            expect(page.get_by_role("article", name="Answer").get_by_text("Done.")).to_be_visible()
            expect(page.get_by_text(f"You activated the skill {name}.")).to_be_visible()
            # The skills of the project that the conversation is in are in the list, too.
            project = person.post("/projects", {"name": "Verse"})["id"]
            of_project = {**body, "name": f"rhymes-{person.name}", "scope": "project", "project_id": project}
            person.post("/skills", of_project)
            conversation = person.get("/conversations")["items"][0]["id"]
            person.put(f"/conversations/{conversation}", {"project_id": project})
            page.reload()
            field.press_sequentially("/rhymes")
            expect(page.get_by_role("option", name=f"/rhymes-{person.name}")).to_be_visible()
        admin.delete(f"/skills/{skill['id']}").raise_for_status()
