"""The to-do list above the message field, on the chat page of a laptop and of a phone."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import WAIT_MS
from web_ui.person import Person
from web_ui.test_chat_runs import choose_all_tools, said, send
from web_ui.test_plans_and_loops import is_wide_enough

WIDTHS = (1280, 390)
LIST = [{"title": "Read the mail"}, {"title": "Write the answer", "description": "In three lines."}]


def writes(width: int) -> list[Rule]:
    """The model writes a list, then again what it made of it before it could see any change."""
    begin = When(user=f"begin {width}", has_tool_result=False)
    write = Call(name="todo_write", arguments={"todos": LIST})
    ticked = [LIST[0] | {"id": "t1", "completed": True}, LIST[1] | {"id": "t2"}]
    again = Call(name="todo_write", arguments={"todos": ticked})
    return [
        Rule(when=begin, reply=[write]),
        Rule(when=When(user=f"begin {width}"), times=1, reply=[Gate(name=f"busy{width}"), again]),
    ]


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            *(rule for width in WIDTHS for rule in writes(width)),
            Rule(reply=[Text(text="It stays open.")]),
        ]
    )


def item(panel: Locator, title: str) -> Locator:
    return panel.get_by_role("checkbox", name=title)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_person_changes_the_list_while_the_model_writes_it(
    person: Person, models: ScriptedProvider, width: int
) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/chat?new=")
        page.set_viewport_size({"width": width, "height": 800})
        choose_all_tools(page)
        send(page, f"begin {width}")
        panel = page.get_by_role("region", name="To-do list")
        toggle = panel.get_by_role("button", name=re.compile("^To-do list"))
        expect(toggle).to_contain_text("0 of 2 done", timeout=WAIT_MS)
        if toggle.get_attribute("aria-expanded") == "false":
            toggle.click()
        expect(panel.get_by_text("In three lines.")).to_be_visible()
        # Renamed by the keyboard alone, while the model is about to write its own version.
        panel.get_by_role("button", name="Rename Write the answer").press("Enter")
        field = panel.get_by_label("What is to be done")
        expect(field).to_be_focused()
        field.fill("Write it by hand")
        check_both_themes(tab, f"chat-todos-{width}")
        assert is_wide_enough(page)
        field.press("Enter")
        expect(item(panel, "Write it by hand")).to_be_visible()
        add = panel.get_by_label("Add a to-do")
        add.fill("Call Ben")
        add.press("Enter")
        expect(item(panel, "Call Ben")).to_be_visible()
        expect(add).to_have_value("")
        models.release(f"busy{width}")
        expect(said(page, "It stays open.")).to_have_count(2, timeout=WAIT_MS)
        expect(page.get_by_text("The model was reminded of what was left to do.")).to_be_visible(
            timeout=WAIT_MS
        )
        expect(toggle).to_contain_text("1 of 3 done")
        expect(item(panel, "Read the mail")).to_be_checked()
        expect(item(panel, "Write it by hand")).not_to_be_checked()
        assert_kept_after_a_reload(page, panel, toggle)


def assert_kept_after_a_reload(page: Page, panel: Locator, toggle: Locator) -> None:
    panel.get_by_label("Add a to-do").fill("Half a word")
    item(panel, "Call Ben").press(" ")
    expect(toggle).to_contain_text("2 of 3 done")
    panel.get_by_role("button", name="Remove Read the mail").click()
    expect(toggle).to_contain_text("1 of 2 done")
    page.reload()
    expect(toggle).to_contain_text("1 of 2 done")
    if toggle.get_attribute("aria-expanded") == "false":
        toggle.click()
    expect(panel.get_by_label("Add a to-do")).to_have_value("Half a word")
    expect(item(panel, "Call Ben")).to_be_checked()
    toggle.click()
    expect(item(panel, "Call Ben")).to_have_count(0)


def test_an_empty_list_is_begun_by_a_command(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/chat?new=")
        send(page, "Hello")
        expect(said(page, "It stays open.")).to_be_visible(timeout=WAIT_MS)
        panel = page.get_by_role("region", name="To-do list")
        expect(panel).to_have_count(0)
        words = page.get_by_label("Message", exact=True)
        words.fill("/todos")
        words.press("Enter")
        panel.get_by_label("Add a to-do").fill("Water the plants")
        panel.get_by_role("button", name="Add it").click()
        expect(item(panel, "Water the plants")).to_be_visible()
        panel.get_by_role("button", name="Rename Water the plants").click()
        panel.get_by_label("What is to be done").press("Escape")
        expect(panel.get_by_role("button", name="Rename Water the plants")).to_be_focused()
