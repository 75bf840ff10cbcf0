"""The pages of agents: creating, changing, copying, importing, sharing and deleting them."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from web_ui.axe import check_both_screens, check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


def test_an_agent_is_created_changed_and_chatted_with(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/agents")
        page.get_by_role("main").get_by_role("button", name="Create an agent").click()
        page.get_by_label("Name", exact=True).fill("Reviewer")
        color = page.get_by_label("Colour").input_value()
        page.get_by_label("Role").fill("reviews Python code")
        page.get_by_label("Instructions").fill("Name the worst problem first.")
        page.get_by_role("combobox", name="Tools").select_option("chosen")
        page.get_by_role("button", name="Tools:").click()
        page.get_by_label("Search tools").fill("file_read")
        page.get_by_role("option", name="file_read", exact=False).first.click()
        page.keyboard.press("Escape")
        page.get_by_label("Temperature").fill("7")
        tab.expected_problems.append("400")
        page.get_by_role("button", name="Create the agent").click()
        # What is wrong is said at its field, and nothing that was typed is lost.
        expect(page.get_by_text("Must be a number from 0 to 2, or null.", exact=True)).to_be_visible()
        expect(page.get_by_label("Instructions")).to_have_value("Name the worst problem first.")
        page.get_by_label("Temperature").fill("0.2")
        page.get_by_role("button", name="Create the agent").click()
        expect(page.get_by_role("heading", name="Reviewer")).to_be_visible()
        [agent] = [each for each in person.get("/agents")["items"] if each["is_own"]]
        assert agent["color"] == color
        assert agent["tools"] == ["file_read"]
        assert agent["temperature"] == 0.2
        check_both_themes(tab, "agent")

        page.get_by_label("Role").fill("reads code")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        assert person.get(f"/agents/{agent['id']}")["role"] == "reads code"
        page.get_by_role("button", name="Start a chat").click()
        expect(page.get_by_role("button", name="Agent: Reviewer")).to_be_visible()


def test_a_built_in_agent_is_copied_exported_and_the_copy_deleted(person: Person, tmp_path: Path) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/agents")
        agents = page.get_by_role("complementary", name="Agents")
        agents.get_by_label("Search agents").fill("code")
        agents.get_by_role("link").filter(has=page.get_by_text("Code", exact=True)).click()
        expect(page.get_by_label("Instructions")).to_be_disabled()
        page.get_by_role("button", name="Make a copy").click()
        expect(page.get_by_role("heading", name="Code (copy)")).to_be_visible()
        page.get_by_role("button", name="More actions").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name="Export as YAML").click()
        file = tmp_path / "code.yaml"
        download.value.save_as(file)
        file.write_text(file.read_text().replace("Code (copy)", "From a file"))
        page.locator("input[type=file]").set_input_files(file)
        expect(page.get_by_role("heading", name="From a file")).to_be_visible()
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page).to_have_url(f"{tab.url}/ui/agents")
        expect(page.get_by_role("heading", name="From a file")).to_have_count(0)
        assert [each["name"] for each in person.get("/agents")["items"] if each["is_own"]] == ["Code (copy)"]


def test_changes_that_are_not_saved_stay_while_other_pages_are_looked_at(person: Person) -> None:
    person.post("/agents", {"name": "Helper"})
    with person.tab(PHONE) as tab:
        page = tab.open("/ui/agents")
        page.get_by_role("link", name="Helper").click()
        page.get_by_label("Role").fill("helps")
        check_both_themes(tab, "phone-agent")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        page.get_by_role("link", name="Back").click()
        page.get_by_role("link", name="Plan").click()
        expect(page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
        page.get_by_role("link", name="Back").click()
        page.get_by_role("link", name="Helper").click()
        expect(page.get_by_label("Role")).to_have_value("helps")
        page.reload()
        expect(page.get_by_label("Role")).to_have_value("helps")
        page.get_by_role("button", name="Discard changes").click()
        expect(page.get_by_label("Role")).to_have_value("")
        page.get_by_label("Role").fill("helps much")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("button", name="Discard changes")).to_be_hidden()
        page.reload()
        expect(page.get_by_label("Role")).to_have_value("helps much")


def test_agents_and_seats_choose_a_model_with_the_picker_of_the_composer(person: Person) -> None:
    [provider] = person.get("/providers")["items"]
    model = provider["default_model"]
    agent = person.post("/agents", {"name": "Guide", "role": "knows the way"})["id"]
    seat = {"agent_id": agent}
    room = person.post("/chat-rooms", {"title": "Walk", "task": "Plan it.", "agents": [seat]})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/agents/{agent}")
        page.get_by_role("button", name="Model: The default of whoever uses it").click()
        page.get_by_label("Search models").fill(model)
        check_both_themes(tab, "agent-model")
        page.get_by_role("option", name=re.compile(f"^{model}")).click()
        expect(page.get_by_role("button", name=f"Model: {provider['name']}: {model}")).to_be_visible()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        stored = person.get(f"/agents/{agent}")
        assert (stored["provider_id"], stored["model"]) == (provider["id"], model)

        # A seat of it, by keys: the default of the provider, and then the agent's again.
        page.goto(f"{tab.url}/ui/rooms/{room}")
        page.get_by_role("button", name="Guide").first.click()
        page.get_by_role("menuitem", name="Edit the seat").click()
        dialog = page.get_by_role("dialog", name="Edit the seat")
        dialog.get_by_role("button", name="More settings").click()
        choose = dialog.get_by_role("button", name="Model: ")
        expect(choose).to_have_accessible_name(f"Model: {model}")
        choose.press("Enter")
        page.get_by_label("Search models").fill("default")
        check_both_screens(tab, "seat-model")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        of_provider = f"Model: {provider['name']}: its default, {model}"
        expect(choose).to_have_accessible_name(of_provider)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        [seat] = person.get(f"/chat-rooms/{room}")["agents"]
        assert (seat["provider_id"], "provider_id" in seat["overrides"]) == (provider["id"], True)
        assert "model" not in seat["overrides"]
        page.get_by_role("button", name="Guide").first.click()
        page.get_by_role("menuitem", name="Edit the seat").click()
        dialog.get_by_role("button", name="More settings").click()
        expect(choose).to_have_accessible_name(of_provider)
        choose.click()
        page.get_by_role("listbox", name="Model").get_by_role("option", name="As the agent").click()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        assert person.get(f"/chat-rooms/{room}")["agents"][0]["overrides"] == []
