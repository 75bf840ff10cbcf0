"""Artifacts in the web UI: gallery, viewers, editing, versions, presentation, and what a conflict shows."""

import json

import pytest
from playwright.sync_api import Page, expect

from web_ui.axe import check_both_screens, check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy

DECK = (
    "# Rye bread\n\nHow we bake it\n\n---\n\n## Ingredients\n\n- flour\n- water\n- salt\n\n---\n\n"
    "## Times\n\n| step | minutes |\n| --- | ---: |\n| knead | 12 |\n| bake | 40 |\n"
)
SHEET = {
    "sheets": [
        {
            "name": "Loaves",
            "columns": [
                {"name": "Day", "type": "date"},
                {"name": "Kind", "type": "text"},
                {"name": "Sold", "type": "number"},
                {"name": "Twice", "type": "formula"},
            ],
            "rows": [
                [f"2026-{1 + n // 28 % 12:02}-{1 + n % 28:02}", f"kind {n % 7}", n, f"=C{n + 2}*2"]
                for n in range(5000)
            ],
        },
        {"name": "Prices", "columns": [{"name": "Kind"}], "rows": [["Rye"]]},
    ]
}
CHART = {
    "type": "column",
    "title": "Loaves sold",
    "labels": ["Mon", "Tue", "Wed"],
    "series": [{"name": "Rye", "values": [12, 19, 7]}, {"name": "Wheat", "values": [8, 11, 14]}],
}
FILES = [
    {"path": "src/bake.py", "content": "def bake(minutes: int) -> str:\n    return f'{minutes} minutes'\n"},
    {"path": "README.md", "content": "# Bake\n"},
]
WEB = "<h1 id=title>plain</h1><script>document.querySelector('h1').textContent = 'made by a script'</script>"
CONTENTS: dict[str, str] = {
    "ppt": DECK,
    "document": "# Rye\n\nIt takes **40** minutes.\n\n# Wheat\n\nIt takes 30.",
    "sheet": json.dumps(SHEET),
    "chart": json.dumps(CHART),
    "diagram": "graph LR\n  Flour --> Dough --> Bread",
    "web": WEB,
}
NAMES = {
    "ppt": "Rye bread for the open day",
    "document": "Baking by hand",
    "sheet": "Loaves of the year",
    "chart": "Loaves sold",
    "diagram": "How bread is made",
    "web": "A page",
}


def create(person: Person, kind: str, **more: object) -> str:
    body = {"type": kind, "name": NAMES.get(kind, "Bake"), **more}
    if kind != "code":
        body["content"] = CONTENTS[kind]
    return str(person.post("/artifacts", body)["id"])


def mode(page: Page, name: str) -> None:
    page.get_by_role("group", name="Show").get_by_role("button", name=name).click()


def test_the_gallery_leads_to_each_kind_of_artifact(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/artifacts")
        expect(page.get_by_text("No artifacts yet")).to_be_visible()
        check_both_themes(tab, "artifacts-none")
        for kind in CONTENTS:
            create(person, kind)
        create(person, "code", files=FILES)
        page.reload()
        gallery = page.get_by_role("list", name="Artifacts")
        expect(gallery.get_by_role("listitem")).to_have_count(7)
        # Those with pages show their first one.
        expect(gallery.locator("img")).to_have_count(2)
        check_both_screens(tab, "artifacts-gallery")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_label("Type").select_option("sheet")
        expect(gallery.get_by_role("listitem")).to_have_count(1)
        page.get_by_label("Type").select_option("")

        gallery.get_by_role("link", name="Loaves of the year").click()
        grid = page.get_by_role("grid")
        grid.focus()
        page.keyboard.press("Control+End")
        expect(page.get_by_role("gridcell", selected=True)).to_have_text("=C5001*2")
        assert page.get_by_role("gridcell").count() < 400
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("gridcell", selected=True)).to_have_text("kind 1")
        page.get_by_role("list", name="Pages").get_by_role("button").first.focus()
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("gridcell", name="Rye")).to_be_visible()
        page.keyboard.press("ArrowUp")
        check_both_screens(tab, "artifact-sheet")
        page.set_viewport_size({"width": 1280, "height": 800})

        for link, shown in (
            ("Loaves sold", page.get_by_role("img", name="Loaves sold")),
            ("How bread is made", page.locator("img[alt='How bread is made']")),
            ("Bake", page.get_by_text("def bake")),
        ):
            page.goto(f"{tab.url}/ui/artifacts")
            gallery.get_by_role("link", name=link, exact=False).last.click()
            expect(shown).to_be_visible()
            check_both_themes(tab, f"artifact-{link.split()[0].lower()}")

        page.goto(f"{tab.url}/ui/artifacts")
        gallery.get_by_role("link", name="A page").click()
        expect(page.frame_locator("iframe[title='A page']").locator("h1")).to_have_text("made by a script")


def test_a_page_is_edited_and_a_conflict_loses_nothing(person: Person) -> None:
    deck = create(person, "ppt")
    with person.tab() as tab:
        page = tab.open(f"/ui/artifacts/{deck}")
        pages = page.get_by_role("list", name="Pages")
        expect(pages.get_by_role("button")).to_have_count(3)
        pages.get_by_role("button").nth(1).click()
        mode(page, "Source")
        field = page.get_by_label("Source of page 2")
        expect(field).to_have_value("## Ingredients\n\n- flour\n- water\n- salt")
        field.fill("## Ingredients\n\n- rye flour")
        page.reload()
        pages.get_by_role("button").nth(1).click()
        mode(page, "Source")
        expect(field).to_have_value("## Ingredients\n\n- rye flour")
        check_both_screens(tab, "artifact-source")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.keyboard.press("Control+s")
        field.press("Control+s")
        expect(page.get_by_text("Saved as version 2.")).to_be_visible()
        expect(page.get_by_text("Not saved yet")).to_have_count(0)

        other = {"page": 2, "content": "## Ingredients\n\n- spelt", "base_version": 2}
        person.put(f"/artifacts/{deck}/content", other)
        tab.expected_problems.append("409")
        field.fill("## Ingredients\n\n- oats")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("Somebody else saved this page meanwhile.")).to_be_visible()
        expect(page.get_by_label("Yours", exact=True)).to_have_value("## Ingredients\n\n- oats")
        expect(page.get_by_label("The newest version", exact=True)).to_contain_text("- spelt")
        check_both_screens(tab, "artifact-conflict")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_label("Yours", exact=True).fill("## Ingredients\n\n- oats\n- spelt")
        page.get_by_role("button", name="Save mine").click()
        expect(page.get_by_text("Saved as version 4.")).to_be_visible()
        content = person.get(f"/artifacts/{deck}/content", page=2)
        assert content["content"].strip() == "## Ingredients\n\n- oats\n- spelt"

        mode(page, "Versions")
        versions = page.get_by_role("list", name="Versions")
        expect(versions.get_by_role("listitem").filter(has_text="version 1")).to_contain_text(person.name)
        first = versions.get_by_role("listitem").filter(has_text="version 1")
        first.get_by_role("button", name="Compare with the newest").click()
        expect(first.get_by_text("Page 2 has changed")).to_be_visible()
        expect(first.get_by_text("- flour", exact=False).first).to_be_visible()
        check_both_screens(tab, "artifact-versions")
        page.set_viewport_size({"width": 1280, "height": 800})
        first.get_by_role("button", name="Restore").click()
        expect(page.get_by_text("Version 1 is restored as version 5.")).to_be_visible()
        restored = person.get(f"/artifacts/{deck}/content")["content"]
        assert restored.strip() == DECK.strip()


def test_an_artifact_is_made_renamed_saved_presented_and_deleted(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/artifacts")
        page.get_by_role("button", name="New artifact").first.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Type").select_option("sheet")
        dialog.get_by_label("Name", exact=True).fill("Rye")
        dialog.get_by_label("Source").fill("no JSON")
        tab.expected_problems.append("400")
        dialog.get_by_role("button", name="Create").click()
        expect(dialog.get_by_role("alert").or_(dialog.locator("[aria-invalid=true]")).first).to_be_visible()
        dialog.get_by_label("Type").select_option("ppt")
        dialog.get_by_label("Source").fill(DECK)
        check_both_themes(tab, "artifact-new")
        dialog.get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", name="Rye", exact=True)).to_be_visible()

        page.get_by_role("button", name="Present").click()
        show = page.get_by_role("dialog", name="Presentation of Rye")
        expect(show.get_by_text("1 / 3")).to_be_visible()
        page.keyboard.press("ArrowRight")
        page.keyboard.press(" ")
        expect(show.get_by_text("3 / 3")).to_be_visible()
        page.keyboard.press("Home")
        check_both_themes(tab, "artifact-presentation")
        page.keyboard.press("End")
        page.keyboard.press("Escape")
        expect(show).to_have_count(0)

        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Name and theme").click()
        dialog.get_by_label("Name", exact=True).fill("Rye and wheat")
        dialog.get_by_label("Theme").select_option("forest")
        dialog.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("heading", name="Rye and wheat")).to_be_visible()

        page.get_by_role("button", name="Download as").click()
        with page.expect_download() as downloaded:
            page.get_by_role("menuitem", name="Markdown").click()
        assert downloaded.value.suggested_filename == "Rye-and-wheat.md"

        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Save in the workspace").click()
        dialog.get_by_label("Format").select_option("md")
        dialog.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("Rye and wheat.md is in your workspace.")).to_be_visible()

        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Delete").click()
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_text("No artifacts yet")).to_be_visible()


def test_deleting_a_conversation_asks_about_its_artifacts(person: Person) -> None:
    kept, deleted = (person.post("/conversations", {"title": title})["id"] for title in ("Kept", "Gone"))
    one = create(person, "document", conversation_id=kept)
    two = create(person, "document", conversation_id=deleted)
    with person.tab() as tab:
        page = tab.open("/ui/chat")
        for title, is_deleted in (("Kept", False), ("Gone", True)):
            entry = page.get_by_role("listitem").filter(has_text=title)
            entry.hover()
            entry.get_by_role("button", name="More actions").click()
            page.get_by_role("menuitem", name="Delete").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("One artifact was made in this chat.")
            if is_deleted:
                dialog.get_by_label("Delete them too").check()
                check_both_themes(tab, "artifact-of-conversation")
            with page.expect_response(lambda answer: answer.request.method == "DELETE"):
                dialog.get_by_role("button", name="Delete", exact=True).click()
            expect(dialog).to_have_count(0)
            expect(entry).to_have_count(0)
        assert [each["id"] for each in person.get("/artifacts")["items"]] == [one]
        assert person.api.get(f"/artifacts/{two}").status_code == 404


def test_an_artifact_on_a_phone_beside_its_chat(person: Person) -> None:
    chat = person.post("/conversations", {"title": "Bread"})["id"]
    deck = create(person, "ppt", conversation_id=chat)
    with person.tab() as tab:
        page = tab.open(f"/ui/chat/{chat}?artifact={deck}")
        expect(page.get_by_role("list", name="Pages")).to_be_visible()
        check_both_themes(tab, "artifact-beside-chat")
        page.get_by_role("button", name="Close").last.click()
        expect(page.get_by_role("list", name="Pages")).to_have_count(0)
        assert "artifact=" not in page.url
    with person.tab(PHONE, is_touched=True) as tab:
        page = tab.open(f"/ui/chat/{chat}?artifact={deck}")
        page.get_by_role("list", name="Pages").get_by_role("button").nth(2).click()
        expect(page.get_by_role("img", name="Page 3. Times")).to_be_visible()
        check_both_themes(tab, "phone-artifact-beside-chat")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
