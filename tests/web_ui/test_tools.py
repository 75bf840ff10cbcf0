"""The pages of tools: running one by hand, rules and what they decide, compositions, skills, MCP servers."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Call, Rule, Script, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person
from web_ui.test_chat_runs import choose_all_tools

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def script() -> Script:
    call = Call(name="python_eval", arguments={"expression": "1 + 1"})
    return Script(rules=[Rule(when=When(user="evaluate", has_tool_result=False), reply=[call])])


def test_a_tool_is_found_explained_and_run_by_hand(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/tools")
        expect(page).to_have_url(f"{tab.url}/ui/tools/all")
        page.get_by_label("Search tools").fill("python_eval")
        page.get_by_role("button", name="python_eval").click()
        page.get_by_role("button", name="May models run this?").click()
        expect(page.get_by_role("region", name="Why")).to_contain_text("Allowed")
        page.get_by_label("expression (string)").fill("6 * 7")
        page.get_by_role("button", name="Run it").click()
        expect(page.get_by_role("region", name="Result")).to_contain_text("42")
        check_both_themes(tab, "tool")
        page.get_by_label("expression (string)").fill("6 *")
        page.get_by_role("button", name="Run it").click()
        expect(page.get_by_role("region", name="Result")).not_to_contain_text("42")
        page.get_by_label("Search tools").fill("nothing like this")
        expect(page.get_by_text("No such tool")).to_be_visible()


def test_rules_are_added_moved_and_decide_in_their_order(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/tools/rules")
        expect(page.get_by_text("No rules")).to_be_visible()
        new = page.get_by_role("form", name="New rule")
        for action, pattern in (("deny", "*"), ("allow", "docs/*")):
            new.get_by_label("Action").select_option(action)
            new.get_by_label("Tool").fill("file_write")
            new.get_by_label("Pattern").fill(pattern)
            new.get_by_role("button", name="Add").click()
            expect(new.get_by_label("Tool")).to_have_value("")
        trying = page.get_by_role("region", name="Try a call")
        trying.get_by_label("Tool of the call").fill("file_write")
        trying.get_by_label("Arguments as JSON").fill('{"path": "docs/a.md"}')
        trying.get_by_role("button", name="Explain").click()
        why = page.get_by_role("region", name="Why")
        expect(why).to_contain_text("Allowed")
        expect(why).to_contain_text("Rule 2 of yours: allow file_write(docs/*)")
        check_both_themes(tab, "rules")
        # The last rule that matches decides, and the explanation follows the order.
        page.get_by_role("button", name="Move rule 2 up").click()
        expect(why).to_contain_text("Denied")
        assert [each["action"] for each in person.get("/permissions/rules")] == ["allow", "deny"]
        page.get_by_role("button", name="Remove rule 2").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
        expect(why).to_contain_text("Allowed")
        trying.get_by_label("Arguments as JSON").fill('{"path"')
        tab.expected_problems.append("400")
        trying.get_by_role("button", name="Explain").click()
        expect(page.get_by_role("alert")).to_contain_text("JSON")
        page.get_by_label("Rules of").select_option("tenant")
        expect(page.get_by_role("form", name="New rule")).to_have_count(0)


def test_a_question_says_why_it_was_asked_and_leads_to_the_rule(person: Person) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    with person.tab() as tab:
        page = tab.open()
        choose_all_tools(page)
        page.get_by_label("Message", exact=True).fill("evaluate")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Why was this asked?").click()
        why = page.get_by_role("region", name="Why")
        expect(why).to_contain_text("Rule 1 of yours: ask python_eval")
        check_both_themes(tab, "why")
        why.get_by_role("link", name="Open the rules").click()
        trying = page.get_by_role("region", name="Try a call")
        expect(trying.get_by_label("Tool of the call")).to_have_value("python_eval")
        expect(trying).to_contain_text("Rule 1 of yours")


def test_the_rules_of_a_project_are_part_of_the_reason(person: Person) -> None:
    project = person.post("/projects", {"name": "Garden"})["id"]
    rules = [{"tool": "python_eval", "action": "ask"}]
    person.put(f"/permissions/rules?scope=project&id={project}", rules)
    chat = person.post("/conversations", {"title": "Sums", "project_id": project})["id"]
    person.post("/messages/stream", {"conversation_id": chat, "content": "evaluate", "tools": True})
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{chat}")
        page.get_by_role("button", name="Why was this asked?").click()
        why = page.get_by_role("region", name="Why")
        expect(why).to_contain_text("Rule 1 of the project: ask python_eval")
        why.get_by_role("link", name="Open the rules").click()
        expect(page.get_by_label("Rules of")).to_have_value("project")
        expect(page.get_by_role("table", name="Rules")).to_contain_text("python_eval")


def test_a_composition_is_written_refused_saved_and_deleted(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/tools/compositions")
        page.get_by_role("button", name="New composition").click()
        dialog = page.get_by_role("dialog")
        definition = dialog.get_by_label("Definition")
        example = definition.input_value()
        definition.fill(example[:-2])
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("not valid JSON")
        tab.expected_problems.append("400")
        definition.fill(example.replace("file_read", "no_such_tool"))
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("no_such_tool")
        definition.fill(example)
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_text("file_write → file_read")).to_be_visible()
        check_both_themes(tab, "compositions")
        page.get_by_role("button", name="New composition").click()
        expect(definition).to_have_value(re.compile('"keep_note_2"'))
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Delete keep_note").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_text("No compositions")).to_be_visible()


def test_skills_and_servers_say_what_to_do_on_a_phone(person: Person) -> None:
    with person.tab(PHONE) as tab:
        page = tab.open("/ui/tools")
        page.get_by_role("link", name="Skills").click()
        expect(page.get_by_text("No skills")).to_be_visible()
        check_both_themes(tab, "phone-skills")
        page.get_by_role("link", name="Back").click()
        page.get_by_role("link", name="MCP servers").click()
        expect(page.get_by_text("No MCP servers")).to_be_visible()
        check_both_themes(tab, "phone-mcp")
        page.get_by_role("link", name="Back").click()
        page.get_by_role("link", name="Rules").click()
        expect(page.get_by_text("No rules")).to_be_visible()
        check_both_themes(tab, "phone-rules")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_a_skill_is_written_matched_changed_uploaded_and_deleted(person: Person, tmp_path: Path) -> None:
    person.post("/projects", {"name": "Meetings"})
    uploaded = tmp_path / "SKILL.md"
    uploaded.write_text("---\nname: invoices\ndescription: Checks invoices.\n---\n\nAdd the rows.\n")
    with person.tab() as tab:
        page = tab.open("/ui/tools/skills")
        page.get_by_role("button", name="Write a skill").click()
        text = page.get_by_label("SKILL.md", exact=True)
        expect(text).to_have_value(re.compile("meeting-notes"))
        tab.expected_problems.append("status of 400")
        text.fill("No front matter.")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("alert").filter(has_text="front matter")).to_be_visible()
        page.get_by_role("button", name="Discard").click()
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("Project · Not reviewed")).to_be_visible()
        text.fill(text.input_value() + "\nBe brief.\n")
        page.reload()
        expect(text).to_have_value(re.compile("Be brief"))
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
        [skill] = person.get("/skills", scope="project")["items"]
        assert "meeting" in skill["description"]
        page.get_by_role("button", name="Disable").click()
        expect(page.get_by_text("Project · Disabled")).to_be_visible()
        page.get_by_role("button", name="Enable").click()
        expect(page.get_by_text("Project · Not reviewed")).to_be_visible()
        check_both_themes(tab, "skill")
        page.go_back()
        page.locator("input[type=file]").set_input_files(uploaded)
        skills = page.get_by_role("list", name="Skills")
        expect(skills.get_by_role("listitem")).to_have_count(2)
        page.get_by_label("Which skills and agents").fill("Please write the meeting notes")
        page.get_by_role("button", name="Match").click()
        expect(
            page.get_by_role("status").filter(has_text="meeting-notes · skill · asked for")
        ).to_be_visible()
        expect(page.get_by_text("the model gets the names meeting-notes")).to_be_visible()
        take_screenshots(tab, "skills-match")
        skills.get_by_role("link", name="invoices").click()
        page.get_by_role("button", name="Delete the skill").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete the skill").click()
        expect(skills.get_by_role("listitem")).to_have_count(1)
