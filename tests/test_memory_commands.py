"""`luxx memory list|add|forget|export` against a real server."""

import json
from pathlib import Path

from api.server_process import ServerProcess
from command_line import printed, refusal


def test_a_fact_is_added_listed_exported_and_forgotten(
    plain_server: ServerProcess, new_user: str, tmp_path: Path
) -> None:
    def luxx(*arguments: str) -> str:
        return printed(plain_server, new_user, "memory", *arguments)

    nuts = luxx(
        "add", "Ben is", "allergic to nuts.", "--category", "preference", "--subject", "Ben",
        "--valid-at", "2026-03-01",
    )  # fmt: skip
    fact_id, *fields = nuts.rstrip("\n").split("\t")
    assert fields == ["user", "preference", "Ben is allergic to nuts."]
    tea = luxx("add", "Tea\nis at four.", "--pin")
    assert luxx("list") == tea + nuts
    assert luxx("list", "NUTS", "allerg*", "--category", "preference", "--scope", "user") == nuts
    assert luxx("list", "--as-of", "2026-02-01") == tea
    assert luxx("list", "--known-at", "2026-02-01T12:00:00Z") == ""
    file = tmp_path / "all.json"
    assert luxx("export", "--scope", "user", "-o", str(file)) == ""
    exported = json.loads(file.read_text("utf-8"))["facts"]
    assert [(fact["text"], fact["subject"], fact["pinned"]) for fact in exported] == [
        ("Ben is allergic to nuts.", "Ben", False), ("Tea\nis at four.", None, True)
    ]  # fmt: skip
    assert luxx("forget", fact_id) == "1 fact is forgotten\n"
    assert luxx("list") == tea
    assert luxx("forget", "--scope", "user", "--source", "person", "--yes") == "1 fact is forgotten\n"
    assert luxx("list") == ""
    for arguments, reason in (
        (("forget", fact_id), "nothing with this id is remembered"),
        (("forget", "../settings"), "is no id of a fact"),
        (("forget", "--scope", "user"), "this cannot be undone; add --yes to do it without a question"),
        (("forget",), "name facts by their ids, or all of a scope or a source (--scope, --source)"),
        (
            ("add", "x", "--scope", "tenant"),
            "you must be an ADMIN to change what is remembered in this scope",
        ),
        (("add", "x", "--object", "y"), "needs a subject"),
        (("list", "--scope", "everything"), "must be"),
    ):
        assert reason in refusal(plain_server, new_user, "memory", *arguments), arguments
    assert "no time" in refusal(plain_server, new_user, "memory", "list", "--as-of", "soon", code=2)
