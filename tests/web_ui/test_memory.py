"""Memory on the pages: its choices in the forms, and what an answer shows of it."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, Text
from web_ui.axe import check_both_screens
from web_ui.person import Person
from web_ui.test_plans_and_loops import WIDTHS, is_wide_enough


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(rules=[Rule(reply=[Text(text="The south side.")])])


def test_a_person_says_in_each_form_whether_answers_use_memory(person: Person) -> None:
    project = person.post("/projects", {"name": "House"})["id"]
    conversation = person.post("/conversations", {"title": "Plants", "project_id": project})["id"]
    room = person.post("/chat-rooms", {"title": "Garden", "task": "Talk."})["id"]
    off = "Off: read and store nothing"
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        page.get_by_role("button", name="Details").click()
        for label in ("Memory", "Memory in this project"):
            with page.expect_response(lambda answer: answer.request.method == "PUT"):
                page.get_by_role("combobox", name=label, exact=True).select_option(label=off)
        page = tab.open("/ui/agents/new")
        page.get_by_label("Name", exact=True).fill("Forgetful")
        page.get_by_role("combobox", name="Memory", exact=True).select_option(label=off)
        page.get_by_role("button", name="Create the agent").click()
        expect(page.get_by_role("heading", name="Forgetful")).to_be_visible()
        page = tab.open("/ui/settings/defaults")
        page.get_by_role("combobox", name="Memory", exact=True).select_option(
            label="Use facts; ask before storing one"
        )
        page.get_by_label("Facts from conversations").select_option(label="On")
        with page.expect_response(lambda answer: answer.request.method == "PUT"):
            page.get_by_role("button", name="Save").click()
        page = tab.open(f"/ui/rooms/{room}")
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Title and task").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("combobox", name="Memory", exact=True).select_option(label=off)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
    [agent] = [each for each in person.get("/agents")["items"] if each["name"] == "Forgetful"]
    paths = (f"/projects/{project}", f"/conversations/{conversation}", f"/chat-rooms/{room}")
    assert [person.get(path)["memory"] for path in paths] == ["off", "off", "off"]
    assert agent["memory"] == "off"
    settings = person.get("/settings")
    assert (settings["memory"], settings["extraction"]) == ("ask", "on")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("models")
def test_an_answer_shows_the_memories_that_it_used_and_forgets_one(person: Person, width: int) -> None:
    for text in ("Anna grows red tomatoes.", "Tomatoes need the south side."):
        person.post("/tools/memory_create/execute", {"arguments": {"content": text}})
    conversation = person.post("/conversations", {"title": "Plants"})["id"]
    person.post("/messages", {"conversation_id": conversation, "content": "What do tomatoes need?"})
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{conversation}")
        page.set_viewport_size({"width": width, "height": 800})
        page.get_by_role("button", name="2 memories used").click()
        shown = page.get_by_role("listitem").filter(has_text="Anna grows red tomatoes.")
        expect(shown).to_contain_text("words: tomatoes")
        shown.get_by_role("button", name="Forget this for good").click()
        expect(page.get_by_text("Some of them have been deleted since.")).to_be_visible()
        expect(shown).to_be_hidden()
        assert is_wide_enough(page)


def test_a_new_person_remembers_changes_and_forgets_a_fact(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/memories")
        expect(page.get_by_text("each with where it comes from")).to_be_visible()
        expect(page.get_by_text("Nothing is remembered yet")).to_be_visible()
        check_both_screens(tab, "memories-empty")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_role("button", name="Remember something").click()
        fact = page.get_by_label("Fact", exact=True)
        fact.fill("Anna grows red tomatoes.")
        page.get_by_text("Connections and times").click()
        page.get_by_label("Object").fill("tomatoes")
        tab.expected_problems += ["400"]
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("needs a subject")).to_be_visible()
        page.get_by_label("Subject").fill("Anna")
        page.get_by_label("Relation").fill("grows")
        page.get_by_label("Pin").check()
        page.get_by_role("button", name="Save").click()
        listed = page.get_by_role("link", name="Anna grows red tomatoes.")
        expect(listed).to_be_visible()
        fact.fill("Anna grows yellow tomatoes.")
        page.get_by_role("button", name="Save").click()
        history = page.get_by_role("listitem").filter(has_text="Changed")
        expect(history).to_contain_text("Anna grows red tomatoes.")
        check_both_screens(tab, "memory")
        page.set_viewport_size({"width": 1280, "height": 800})
        history.get_by_role("button", name="Undo").press("Enter")
        expect(history).to_contain_text("Undone")
        expect(fact).to_have_value("Anna grows red tomatoes.")
        page.get_by_label("Search memory").fill("yellow")
        expect(page.get_by_text("No fact has all these words.")).to_be_visible()
        page.get_by_label("Search memory").fill("tomatoes anna")
        expect(listed).to_be_visible()
        page.get_by_label("Category").first.select_option(label="History")
        expect(listed).to_be_hidden()
        page.get_by_label("Category").first.select_option(label="All categories")
        page.get_by_role("button", name="Forget").press("Enter")
        dialog = page.get_by_role("dialog", name="Forget this fact?")
        expect(dialog).to_contain_text("backups keep their own copies")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Forget").press("Enter")
        dialog.get_by_role("button", name="Forget").press("Enter")
        expect(page).to_have_url(f"{tab.url}/ui/memories")
        expect(page.get_by_text("each with where it comes from")).to_be_visible()
        expect(listed).to_be_hidden()
        assert person.get("/memories")["items"] == []


@pytest.mark.usefixtures("models")
def test_what_was_found_is_sorted_by_relevance_or_newest_by_keyboard(person: Person) -> None:
    for title, text in (
        ("Best", "compost compost compost"),
        ("Newest", "A word on compost, and many others"),
    ):
        conversation = person.post("/conversations", {"title": title})["id"]
        person.post("/messages", {"conversation_id": conversation, "content": text})
    with person.tab() as tab:
        page = tab.open()
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("dialog").get_by_role("combobox")).to_be_focused()
        page.keyboard.type("compost")
        hits = page.get_by_role("option").filter(has_text="compost")
        expect(hits).to_have_count(2)
        expect(hits.first).to_contain_text("Best")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        newest = page.get_by_role("button", name="Newest")
        expect(newest).to_be_focused()
        page.keyboard.press("Enter")
        expect(newest).to_have_attribute("aria-pressed", "true")
        expect(hits.first).to_contain_text("Newest")
        check_both_screens(tab, "search-sorted")
