"""Prompts through the API: what they hold, who may use and change them, and which are refused."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from api.client import ApiClient
from luxx.features.prompts import MAX_VARIABLES, variables_of

numbers = itertools.count()


def test_a_prompt_is_stored_shown_changed_found_and_deleted(anna: ApiClient) -> None:
    body = {"name": "translate", "title": " Translate ", "content": "Into {{language:French}}:\n{{text}}"}
    prompt = anna.good("POST", "/prompts", json=body)
    path = f"/prompts/{prompt['id']}"
    assert (prompt["name"], prompt["title"], prompt["content"]) == ("translate", "Translate", body["content"])
    assert prompt["variables"] == [
        {"name": "language", "default": "French"}, {"name": "text", "default": None}
    ]  # fmt: skip
    assert anna.good("GET", path) == prompt
    changed = anna.good("PUT", path, json={"description": "Über Texte", "content": "Into German: {{text}}"})
    assert (changed["title"], [one["name"] for one in changed["variables"]]) == ("Translate", ["text"])
    anna.good("POST", "/prompts", json={"name": "review", "content": "Review this."})
    for part, names in (("über", ["translate"]), ("RANSL", ["translate"]), ("%", []), ("e", None)):
        found = anna.good("GET", "/prompts", params={"q": part})
        assert names is None or [one["name"] for one in found["items"]] == names, part
    first = anna.good("GET", "/prompts?page_size=1")
    assert (first["total"], first["items"][0]["name"]) == (2, "review")
    anna.good("DELETE", path)
    assert anna.bad("GET", path, 404)["detail"]["kind"] == "prompt_not_found"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Upper"}, "$.name"),
        ({"name": "two words"}, "$.name"),
        ({"name": "-x"}, "$.name"),
        ({"name": "x\n"}, "$.name"),
        ({"name": "x" * 41}, "$.name"),
        ({"content": " \n"}, "$.content"),
        ({"content": "x" * 50_001}, "$.content"),
        ({"content": "".join(f"{{{{v{n}}}}}" for n in range(MAX_VARIABLES + 1))}, "$.content"),
        ({"title": "a\nb"}, "$.title"),
    ],
)
def test_a_wrong_prompt_is_refused_with_its_field(anna: ApiClient, body: dict[str, Any], field: str) -> None:
    refused = anna.bad("POST", "/prompts", 400, json={"name": "fine", "content": "x"} | body)
    assert list(refused["detail"]["fields"]) == [field]


def test_a_name_belongs_to_one_prompt_of_a_user(anna: ApiClient, admin: ApiClient) -> None:
    anna.good("POST", "/prompts", json={"name": "mine", "content": "x"})
    other = anna.good("POST", "/prompts", json={"name": "other", "content": "x"})
    for method, path in (("POST", "/prompts"), ("PUT", f"/prompts/{other['id']}")):
        refused = anna.bad(method, path, 409, json={"name": "mine", "content": "y"})
        assert refused["detail"]["kind"] == "prompt_name_taken"
    assert anna.good("PUT", f"/prompts/{other['id']}", json={"name": "other"})["name"] == "other"
    theirs = admin.good("POST", "/prompts", json={"name": "mine", "content": "x"})
    anna.bad("GET", f"/prompts/{theirs['id']}", 404)


def test_an_administrator_shares_a_prompt_and_a_successor_takes_it_over(
    join: Callable[..., ApiClient], tenant_id: int, admin: ApiClient
) -> None:
    boss, other_boss, user = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id)
    body = {"name": "team", "content": "x", "is_shared": True}
    assert "only an administrator" in user.bad("POST", "/prompts", 403, json=body)["error"]
    path = f"/prompts/{boss.good('POST', '/prompts', json=body)['id']}"
    assert user.good("GET", path)["is_own"] is False
    user.bad("PUT", path, 403, json={"title": "mine"})
    user.bad("DELETE", path, 403)
    admin.bad("GET", path, 404)
    assert "another administrator" in other_boss.bad("PUT", path, 403, json={"title": "mine"})["error"]
    other_boss.good("POST", "/prompts", json={"name": "team", "content": "own"})
    admin.good("DELETE", f"/auth/users/{boss.user['id']}")
    taken = other_boss.good("GET", path)
    assert (taken["name"], taken["is_own"], taken["is_shared"]) == ("team-2", True, True)
    assert other_boss.good("PUT", path, json={"is_shared": False})["is_shared"] is False
    user.bad("GET", path, 404)


@pytest.mark.parametrize(
    ("content", "variables"),
    [
        ("{{ a }} {{a:1}} {{a:2}}", [("a", "1")]),
        ("{{Sprache: Deutsch}}{{文本}}", [("Sprache", " Deutsch"), ("文本", None)]),
        ("{{}} {a} {{a b}} {{a{b}} {{ :x}}", []),
        ("{{a:}}", [("a", "")]),
        ("{{" * 10_000, []),
    ],
)
def test_variables_are_found_in_a_text(content: str, variables: list[tuple[str, str | None]]) -> None:
    assert [(one.name, one.default) for one in variables_of(content)] == variables
