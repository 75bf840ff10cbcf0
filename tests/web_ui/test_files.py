"""The files page: folders, uploads, previews, downloads, deletions, and what the server refuses."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154"
    "08d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


def put(person: Person, name: str, content: bytes, path: str = "") -> None:
    person.api.post(
        "/files", files={"file": (name, content)}, data={"path": path} if path else {}
    ).raise_for_status()


def test_files_are_uploaded_shown_downloaded_and_deleted(person: Person, tmp_path: Path) -> None:
    put(person, "list.txt", b"Buy milk.", "notes")
    (tmp_path / "hostile.html").write_text("<script>window.hacked = 1</script><b>bold</b>")
    (tmp_path / "dot.png").write_bytes(PNG)
    with person.tab() as tab:
        page = tab.open("/ui/files")
        expect(page.get_by_role("button", name="notes", exact=True)).to_be_visible()
        chosen = [tmp_path / "hostile.html", tmp_path / "dot.png"]
        page.locator("input[type=file]").set_input_files(chosen)
        page.get_by_role("button", name="hostile.html", exact=True).click()
        inspector = page.get_by_role("complementary", name="hostile.html")
        expect(inspector).to_contain_text("<script>window.hacked = 1</script>")
        assert page.evaluate("window.hacked") is None
        page.get_by_role("button", name="dot.png", exact=True).click()
        image = page.get_by_role("complementary", name="dot.png").get_by_role("img", name="dot.png")
        expect(image).to_be_visible()
        check_both_themes(tab, "files")

        with page.expect_download() as download:
            page.get_by_role("button", name="Download hostile.html").click()
        assert download.value.suggested_filename == "hostile.html"
        assert b"bold" in Path(download.value.path()).read_bytes()

        page.get_by_label("Search this folder").fill("nothing like this")
        expect(page.get_by_text("No such files")).to_be_visible()
        page.get_by_label("Search this folder").fill("")
        page.get_by_role("button", name="Delete dot.png").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        # What is behind an open dialog has no roles.
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name="dot.png", exact=True)).to_have_count(0)
        assert {each["name"] for each in person.get("/files")["items"]} == {"notes", "hostile.html"}

        tab.expected_problems.append("409")
        page.get_by_role("button", name="Delete notes").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("empty")
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="notes", exact=True).click()
        expect(page).to_have_url(f"{tab.url}/ui/files/notes")
        expect(page.get_by_role("button", name="list.txt", exact=True)).to_be_visible()
        page.go_back()
        expect(page.get_by_role("button", name="notes", exact=True)).to_be_visible()


def test_files_on_a_phone(person: Person) -> None:
    with person.tab(PHONE) as tab:
        page = tab.open("/ui/files")
        expect(page.get_by_text("No files here")).to_be_visible()
        put(person, "list.txt", b"Buy milk.")
        page.reload()
        page.get_by_role("button", name="list.txt", exact=True).click()
        expect(page.get_by_text("Buy milk.")).to_be_visible()
        check_both_themes(tab, "phone-files")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
