"""The page of knowledge bases: documents are added, found, read where they were found, shared and deleted."""

from pathlib import Path

import pytest
from knowledge_documents import handbook_docx, report_pdf
from playwright.sync_api import expect

from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


def test_documents_are_added_found_read_shared_and_deleted(person: Person, tmp_path: Path) -> None:
    (tmp_path / "handbook.docx").write_bytes(handbook_docx())
    (tmp_path / "report.pdf").write_bytes(report_pdf())
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 and nothing else")
    with person.tab() as tab:
        page = tab.open("/ui/knowledge")
        page.get_by_role("link", name="Create a knowledge base").or_(
            page.get_by_role("button", name="Create a knowledge base")
        ).first.click()
        page.get_by_label("Name", exact=True).fill("Bakery")
        page.get_by_label("Description").fill("How we bake.")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("No documents yet")).to_be_visible()
        documents = [tmp_path / "handbook.docx", tmp_path / "report.pdf", tmp_path / "broken.pdf"]
        page.locator("input[type=file]").set_input_files(documents)
        table = page.get_by_role("table", name="Documents")
        for name, state in (("handbook.docx", "passage"), ("report.pdf", "pages"), ("broken.pdf", "Failed")):
            expect(table.get_by_role("row").filter(has_text=name)).to_contain_text(state)
        check_both_themes(tab, "knowledge")

        page.get_by_label("Try a search").fill("zzzzqqq")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.get_by_text("No passage fits these words.")).to_be_visible()
        page.get_by_label("Try a search").fill("crate 2 weighs")
        page.get_by_role("button", name="Search", exact=True).click()
        passages = page.get_by_role("list", name="Passages")
        passages.get_by_role("listitem").filter(has_text="p. 2").get_by_role("link").first.click()
        expect(page.locator("article[aria-current]")).to_contain_text("crate 2")
        check_both_themes(tab, "knowledge-document")
        page.go_back()

        page.get_by_role("button", name="Members", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Nobody else yet.")
        dialog.get_by_label("Name of the user").fill("nobody")
        tab.expected_problems.append("404")
        dialog.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("no active user with this id or name")
        page.keyboard.press("Escape")

        base = person.get("/knowledge")["items"][0]["id"]
        chat = person.post("/conversations", {"knowledge": [base]})["id"]
        answered = person.api.post(
            "/messages", json={"conversation_id": chat, "content": "What does crate 2 weigh?"}
        )
        answered.raise_for_status()
        page.goto(f"{tab.url}/ui/chat/{chat}")
        page.get_by_role("button", name="Details").click()
        expect(page.get_by_role("button", name="Knowledge: Bakery")).to_be_visible()
        page.get_by_role("region", name="Sources").get_by_role("link").first.click()
        expect(page.locator("article[aria-current]")).to_contain_text("crate 2")
        page.get_by_role("link", name="All documents of this base").click()

        page.get_by_role("button", name="Delete broken.pdf").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        expect(table.get_by_text("broken.pdf")).to_have_count(0)
        page.get_by_role("button", name="Delete the knowledge base").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_text("No knowledge base yet")).to_be_visible()
        assert person.get("/knowledge")["items"] == []


def test_a_knowledge_base_on_a_phone(person: Person) -> None:
    base = person.post(
        "/knowledge", {"name": "Bakery of the long road to the mill", "description": "x" * 300}
    )["id"]
    person.post(
        f"/knowledge/{base}/documents", {"name": "bread.md", "text": "# Bread\n\nRye takes 40 minutes."}
    )
    with person.tab(PHONE) as tab:
        page = tab.open(f"/ui/knowledge/{base}")
        expect(page.get_by_role("list", name="Documents")).to_contain_text("1 passage")
        page.get_by_label("Try a search").fill("rye minutes")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.get_by_role("list", name="Passages")).to_contain_text("40 minutes")
        check_both_themes(tab, "phone-knowledge")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
