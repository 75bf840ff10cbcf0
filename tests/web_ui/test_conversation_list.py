"""The list of conversations, files, connecting a model, copies, export and import."""

import json
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import expect

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person

pytestmark = pytest.mark.heavy
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100"
    "c9fe92ef0000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        models=["scripted", "other-model"],
        rules=[
            Rule(when=When(system="You write the title"), reply=[Text(text="Tomatoes in a greenhouse")]),
            Rule(when=When(), reply=[Text(text="Seen.")]),
        ],
    )


def test_conversations_are_searched_pinned_renamed_archived_and_deleted(person: Person) -> None:
    for title in ("Greenhouse", "Holiday", "Taxes"):
        person.post("/conversations", {"title": title})
    with person.tab() as tab:
        page = tab.open()

        def choose(title: str, action: str) -> None:
            entry = page.get_by_role("listitem").filter(has_text=title)
            entry.hover()
            entry.get_by_role("button", name="More actions").click()
            page.get_by_role("menuitem", name=action, exact=True).click()

        choose("Taxes", "Pin")
        expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
        choose("Holiday", "Archive")
        expect(page.get_by_role("link", name="Holiday")).to_be_hidden()
        choose("Greenhouse", "Rename")
        page.get_by_label("Title").fill("Glass house")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Glass house")).to_be_visible()
        take_screenshots(tab, "list")
        page.get_by_label("Search conversations").fill("glass")
        expect(page.get_by_role("link", name="Taxes")).to_be_hidden()
        page.get_by_label("Search conversations").fill("")
        choose("Taxes", "Delete")
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("link", name="Taxes")).to_be_hidden()
        page.get_by_role("complementary").get_by_role("button", name="More actions").first.click()
        page.get_by_role("menuitem", name="Show archived").click()
        expect(page.get_by_role("link", name="Holiday")).to_be_visible()
        choose("Holiday", "Take out of the archive")
        expect(page.get_by_text("No conversation is archived here.")).to_be_visible()


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["laptop", "phone"])
def test_a_model_that_was_chosen_in_the_settings_names_a_conversation_on_every_open_page(
    person: Person, size: tuple[int, int]
) -> None:
    with person.tab(size) as tab, person.tab() as other:
        page = tab.open("/ui/settings/defaults")
        hint = (
            "Where neither you nor your tenant has chosen one, it keeps its first words, which costs nothing."
        )
        expect(page.get_by_text(hint)).to_be_visible()
        page.get_by_label("Titles of conversations").select_option("Their first words")
        expect(page.get_by_label("Provider of titles")).to_be_hidden()
        page.get_by_label("Titles of conversations").select_option("By a model")
        expect(page.get_by_label("Model of titles")).to_be_hidden()
        page.get_by_label("Provider of titles").select_option(index=1)
        page.get_by_label("Model of titles").fill("other-model")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        assert person.get("/settings")["title_model"] == "other-model"
        check_both_themes(tab, f"settings-titles-{size[0]}")

        list_elsewhere = other.open()
        page.goto(f"{tab.url}/ui/chat?new")
        box = page.get_by_role("textbox", name="Message")
        box.fill("How do I grow tomatoes?")
        box.press("Enter")
        expect(page.get_by_role("heading", name="Tomatoes in a greenhouse")).to_be_visible()
        expect(list_elsewhere.get_by_role("link", name="Tomatoes in a greenhouse").first).to_be_visible()
        expect(page).to_have_title("Tomatoes in a greenhouse · Luxx")
        if size != PHONE:
            expect(page.get_by_role("link", name="Tomatoes in a greenhouse").first).to_be_visible()


def test_a_conversation_without_a_title_has_one_in_the_language_of_the_page(person: Person) -> None:
    chat = person.post("/conversations", {})
    assert chat["title"] == "New conversation"
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{chat['id']}")
        expect(page.get_by_role("heading", name="New conversation")).to_be_visible()
        page.evaluate("localStorage.setItem('luxx.language', 'zh')")
        page.reload()
        expect(page.get_by_role("heading", name="新对话", exact=True)).to_be_visible()
        expect(page).to_have_title("新对话 · Luxx")
        entry = page.get_by_role("listitem").filter(has_text="新对话")
        expect(entry).to_be_visible()
        expect(page.get_by_text("New conversation")).to_be_hidden()
        take_screenshots(tab, "untitled-zh")
        # A rename that changes nothing stores no Chinese title.
        entry.hover()
        entry.get_by_role("button", name="更多操作").click()
        page.get_by_role("menuitem", name="重命名", exact=True).click()
        page.keyboard.press("Enter")
        expect(entry).to_be_visible()
    assert person.get(f"/conversations/{chat['id']}")["title"] == "New conversation"


def test_files_are_attached_by_the_button_and_by_pasting(person: Person, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Buy milk.", "utf-8")
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    with person.tab() as tab:
        page = tab.open()
        page.locator("input[type=file][multiple]").set_input_files(
            [tmp_path / "notes.txt", tmp_path / "pixel.png"]
        )
        expect(page.get_by_role("button", name="Remove notes.txt")).to_be_visible()
        page.get_by_label("Message", exact=True).evaluate(
            """area => {
              const data = new DataTransfer()
              data.items.add(new File(['pasted text'], 'pasted.md', { type: 'text/markdown' }))
              area.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }))
            }"""
        )
        expect(page.get_by_role("button", name="Remove pasted.md")).to_be_visible()
        page.get_by_label("Message", exact=True).fill("look")
        page.get_by_role("button", name="Send").click()
        message = page.get_by_role("article", name="You")
        expect(message.get_by_text("notes.txt")).to_be_visible()
        expect(message.get_by_text("pasted.md")).to_be_visible()
        expect(message.get_by_role("img", name="pixel.png")).to_be_visible()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Seen.")
        take_screenshots(tab, "attachments")


def test_connecting_a_model_lists_its_models_and_says_what_is_wrong(
    person: Person, server: ServerProcess, models: ScriptedProvider
) -> None:
    address = models.url.removeprefix("http://")
    with person.sign_in_as_admin() as admin:
        admin.put("/admin/allowed-hosts", json={"hosts": [address]}).raise_for_status()
    with person.tab() as tab:
        tab.expected_problems += ["status of 4", "status of 5"]
        page = tab.open()
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.keyboard.press("Control+k")
        page.keyboard.type("connect")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Connect a model")
        expect(dialog.get_by_role("button", name="Anthropic")).to_be_visible()
        take_screenshots(tab, "connect")
        dialog.get_by_role("button", name="A server of your own").click()
        dialog.get_by_label("Address").fill("http://127.0.0.1:1/v1")
        dialog.get_by_label("Name").fill("mine")
        dialog.get_by_role("button", name="Connect", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("127.0.0.1:1")
        dialog.get_by_label("Address").fill(f"http://{address}/v1")
        dialog.get_by_role("button", name="Connect", exact=True).click()
        dialog.get_by_role("radio", name="other-model").check()
        take_screenshots(tab, "connect-models")
        dialog.get_by_role("button", name="Use this model").click()
        expect(page.get_by_text("mine is connected.")).to_be_visible()
        expect(page.get_by_role("button", name="Model: other-model")).to_be_visible()
        names = [each["name"] for each in person.get("/providers")["items"] if each["is_own"]]
        assert names == ["mine"]


def test_a_conversation_is_copied_exported_and_imported(person: Person, tmp_path: Path) -> None:
    with person.tab() as tab:
        page = tab.open()
        page.get_by_label("Message", exact=True).fill("to be copied")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Seen.")
        header = page.get_by_role("main").get_by_role("banner").or_(page.locator("main header"))
        header.get_by_role("button", name="More actions").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name="Export as JSON").click()
        download.value.save_as(tmp_path / "talk.json")
        assert "to be copied" in json.dumps(json.loads((tmp_path / "talk.json").read_bytes()))
        header.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Copy the conversation").click()
        expect(page.get_by_text("This is a copy; the original is unchanged.")).to_be_visible()
        page.locator("input[type=file][accept='.json,.zip']").set_input_files(tmp_path / "talk.json")
        expect(page.get_by_text("1 conversation was imported.")).to_be_visible()
        assert person.get("/conversations")["total"] == 3
