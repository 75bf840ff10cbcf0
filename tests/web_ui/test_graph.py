"""The page of the graph: the picture, the list beside it, the past, and merging with its undoing."""

import pytest
from playwright.sync_api import expect

from web_ui.axe import check_both_themes
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person
from web_ui.test_plans_and_loops import is_wide_enough

DRAWN = "[role=img][data-drawn]"


def remember(person: Person, subject: str, object_: str, **more: str) -> dict[str, str]:
    """Stores that one knows the other; returns the ids of both by their names."""
    body = {
        "text": f"{subject} knows {object_}.",
        "subject": subject,
        "predicate": "knows",
        "object": object_,
    }
    return {entity["name"]: entity["id"] for entity in person.post("/memories", body | more)["entities"]}


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_person_finds_merges_and_splits_by_keyboard_and_on_a_phone(
    person: Person, size: tuple[int, int]
) -> None:
    remember(person, "Anna", "Ben", valid_at="2020-01-01T00:00:00Z", invalid_at="2021-01-01T00:00:00Z")
    ids = remember(person, "Anna", "Carl", valid_at="2022-01-01T00:00:00Z") | remember(
        person, "Annie", "Dora"
    )
    with person.tab(size) as tab:
        page = tab.open("/ui/graph")
        if size == PHONE:
            page.get_by_role("link", name="The whole graph").click()
        expect(page.locator(DRAWN)).to_have_attribute(
            "aria-label", "Picture of the graph: 5 nodes, 3 connections. The list has the same entities."
        )
        check_both_themes(tab, f"graph-whole-{size[0]}")
        page.get_by_label("As of").fill("2020-06-01")
        expect(page.locator(DRAWN)).to_have_attribute(
            "aria-label", "Picture of the graph: 4 nodes, 2 connections. The list has the same entities."
        )
        page.get_by_role("button", name="Show the present").click()
        if size == PHONE:
            page.get_by_role("link", name="Back").click()
        page.get_by_role("searchbox", name="Search names").fill("ann")
        page.get_by_role("link", name="Annie").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Annie")).to_be_visible()
        page.get_by_role("button", name="Merge", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Merge into Anna", exact=True).click()
        expect(page.get_by_role("heading", name="Anna", exact=True)).to_be_visible()
        for name in ("Carl", "Dora"):
            expect(page.locator("main").get_by_role("link", name=name, exact=True)).to_be_visible()
        expect(page.locator(DRAWN)).to_be_visible()
        check_both_themes(tab, f"graph-entity-{size[0]}")
        assert is_wide_enough(page)
        page.get_by_role("button", name="Split off").click()
        expect(page.get_by_role("button", name="Split off")).to_be_hidden()
        expect(page.locator("main").get_by_role("link", name="Dora", exact=True)).to_be_hidden()
        page.get_by_role("button", name="Undo").first.click()
        expect(page.get_by_role("button", name="Split off")).to_be_visible()
    assert person.get(f"/graph/entities/{ids['Annie']}")["merged_into"] == ids["Anna"]
