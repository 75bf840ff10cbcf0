"""The page of the graph: the picture, the list beside it, the past, and merging with its undoing."""

import random
from contextlib import closing

import pytest
from playwright.sync_api import expect
from sqlalchemy import insert
from sqlalchemy.engine import make_url

from luxx.features.memory.models import EntityRow, FactRow, MemoryScopeRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine
from web_ui.axe import check_both_themes
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person
from web_ui.test_plans_and_loops import is_wide_enough

DRAWN = "[role=img][data-drawn]"
NODES, EDGES = 2_000, 6_000
DRAWING_MS = 2_000
SINCE_ANSWER = """() => document.querySelector("[role=img][data-drawn]") && performance.now() -
  performance.getEntriesByType("resource").filter((entry) => new URL(entry.name).pathname === "/graph")
  .at(-1).responseEnd"""
"""The time from the answer of the server to the picture."""


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


def add_large_graph(person: Person) -> None:
    """Gives the person a graph of the most nodes and edges that the page shows."""
    now, chance = utc_now(), random.Random(5)
    with closing(Store(open_engine(make_url(f"sqlite:///{person.server.data_dir}/luxx.db")))) as store:
        scope = {"tenant_id": 1, "kind": "user", "user_id": person.get("/auth/me")["id"], "created_at": now}
        common = {"created_at": now}
        with store.engine.begin() as connection:
            key = connection.execute(insert(MemoryScopeRow), scope).inserted_primary_key
            assert key is not None
            common["scope_id"] = key[0]
            entity = {"type": "thing", "aliases": "[]", "summary": "", "updated_at": now, **common}
            ids: list[int] = []
            for number in range(NODES):
                name = f"thing {number}"
                row = {"uid": new_id(), "name": name, "folded": name, **entity}
                made = connection.execute(insert(EntityRow), row).inserted_primary_key
                assert made is not None
                ids.append(made[0])
            pairs = {tuple(chance.sample(range(NODES), 2)) for _ in range(EDGES * 2)}
            facts = [
                {
                    "uid": new_id(), "text": f"{start} knows {end}", "category": "knowledge",
                    "subject_id": ids[start], "object_id": ids[end], "predicate": "knows", "origin": "person",
                    "trusted": True, "pinned": False, "weight": 1.0, **common,
                }
                for start, end in sorted(pairs)[:EDGES]
            ]  # fmt: skip
            connection.execute(insert(FactRow), facts)


@pytest.mark.heavy
def test_two_thousand_nodes_are_drawn_in_two_seconds(person: Person) -> None:
    add_large_graph(person)
    with person.tab(LAPTOP) as tab:
        page = tab.open("/ui/graph")
        took = page.wait_for_function(SINCE_ANSWER).json_value()
        expect(page.locator(DRAWN)).to_have_attribute(
            "aria-label",
            "Picture of the graph: 2000 nodes, 6000 connections. The list has the same entities.",
        )
        print(f"drawn {took:.0f} ms after the answer")
        assert took < DRAWING_MS
