"""Tool calls and their approvals in the form of their kind: terminals, differences, lines, tables, lists."""

import pytest
from playwright.sync_api import Locator, Page, expect

from luxx.providers.scripted import Call, Rule, Script, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP
from web_ui.person import Person
from web_ui.test_chat_runs import choose_all_tools, send

pytestmark = pytest.mark.heavy

HOSTILE = "<img src=x onerror=alert(1)>"
WRITTEN = f"one milk\ntwo {HOSTILE}\nthree\n"
EDIT = {"path": "notes.md", "old_string": "one milk\ntwo", "new_string": "one milk\n2"}
COMMAND = "for i in $(seq 40); do printf '\\033[32mline %s\\033[0m\\n' $i; done; echo broken >&2; exit 3"
ROWS = [{"name": "Ann", "age": 30, "none": None}, {"name": "Bo", "age": 41}]
TODOS = [{"title": "Look", "completed": True}, {"title": "Write"}]


@pytest.fixture(scope="module")
def script() -> Script:
    calls = [
        [Call(name="file_write", arguments={"path": "notes.md", "content": WRITTEN})],
        [Call(name="file_edit", arguments=EDIT)],
        [
            Call(name="file_read", arguments={"path": "notes.md", "offset": 1}),
            Call(name="file_grep", arguments={"pattern": "milk|three", "path": "."}),
            Call(
                name="process_data", arguments={"data": ROWS, "operation": "sort", "options": {"path": "age"}}
            ),
            Call(name="todo_write", arguments={"todos": TODOS}),
        ],
        [Call(name="shell_execute", arguments={"command": COMMAND})],
        [Text(text="All done.")],
    ]
    return Script(
        rules=[
            Rule(when=When(user="work", call=number), reply=[*reply]) for number, reply in enumerate(calls, 1)
        ]
    )


def open_card(page: Page, name: str) -> Locator:
    """The card of the call, opened."""
    card = page.locator(".step").filter(has=page.get_by_role("button", name=name, exact=False)).first
    card.get_by_role("button", name=name).first.click()
    expect(card.get_by_text("Arguments", exact=True)).to_be_visible()
    return card


def test_calls_and_their_approvals_have_the_form_of_their_kind(person: Person) -> None:
    asked = [{"tool": name, "action": "ask"} for name in ("file_edit", "shell_execute")]
    person.put("/permissions/rules?scope=user", [{"tool": "file_write", "action": "allow"}, *asked])
    with person.tab() as tab:
        page = tab.open()
        choose_all_tools(page)
        send(page, "work")
        # The edit is seen as a difference before it is made, with what the tool may do in words.
        expect(page.get_by_role("group", name="What changes in notes.md")).to_contain_text("-two")
        expect(page.get_by_text("Medium risk")).to_be_visible()
        expect(page.get_by_text("Writes", exact=True)).to_be_visible()
        check_both_screens(tab, "tool-approval-edit")
        page.get_by_role("button", name="Once").click()

        expect(page.get_by_role("group", name="What is asked for")).to_contain_text("seq 40")
        expect(page.get_by_text("High risk")).to_be_visible()
        expect(page.get_by_text("Runs commands")).to_be_visible()
        check_both_screens(tab, "tool-approval-command")
        page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
        page.get_by_role("button", name="Once").click()
        expect(page.get_by_text("All done.")).to_be_visible()

        command = open_card(page, "shell_execute")
        output = command.get_by_role("group", name="Output", exact=True)
        expect(output).to_contain_text("line 24")
        expect(output).not_to_contain_text("line 25")
        expect(output).not_to_contain_text("[32m")
        expect(command.get_by_role("group", name="Error output")).to_contain_text("broken")
        expect(command.get_by_text("Exit code 3", exact=True)).to_be_visible()
        command.get_by_role("button", name="Show all 40 lines").press("Enter")
        expect(output).to_contain_text("line 40")
        command.get_by_role("button", name="Show less").press("Enter")

        written = open_card(page, "file_write")
        expect(written.get_by_role("group", name="notes.md")).to_contain_text(HOSTILE)
        assert written.locator("img").count() == 0
        edited = open_card(page, "file_edit")
        expect(edited.get_by_role("group", name="What changes in notes.md").last).to_contain_text("+2")
        read = open_card(page, "file_read")
        assert read.get_by_role("group", name="notes.md").inner_text().split()[:2] == ["2", "3"]
        grep = open_card(page, "file_grep")
        expect(grep.locator("mark")).to_have_text(["milk", "three"])
        data = open_card(page, "process_data")
        expect(data.get_by_role("table").last.get_by_role("columnheader")).to_have_text(["Name", "Age"])
        todos = open_card(page, "todo_write")
        expect(todos.get_by_role("listitem").first).to_have_text("Done Look")
        check_both_screens(tab, "tool-cards")
        read.scroll_into_view_if_needed()
        check_both_screens(tab, "tool-cards-data")
