"""The tools with which models manage tasks, as their caller and on the caller's own tasks."""

from collections.abc import Callable
from typing import Any

from api.client import ApiClient


def call(person: ApiClient, tool: str, /, **arguments: Any) -> Any:
    result = person.ask("POST", f"/tools/{tool}/execute", json={"arguments": arguments}).json()
    return result.get("data", result) if "message" in result else result


def test_a_task_is_created_found_changed_snoozed_and_deleted_by_tools(
    join: Callable[..., ApiClient], tenant_id: int
) -> None:
    person = join(tenant_id, level=2)
    due = "2100-01-01T15:00:00+08:00"
    created = call(person, "task_create", name="Bank", goal="Call the bank", due_at=due, priority=2)
    assert created["success"], created
    task_id = created["data"]["id"]
    assert person.good("GET", f"/tasks/{task_id}")["due_at"] == "2100-01-01T07:00:00Z"
    changed = call(person, "task_update", task_id=task_id, priority=1, clear=["due_at"])["data"]
    assert (changed["priority"], "due_at" in changed) == (1, False)
    assert call(person, "task_list", q="bank")["data"]["total"] == 1
    call(person, "task_snooze", task_id=task_id, until=due)
    assert call(person, "task_list")["data"]["tasks"] == []
    assert call(person, "task_list", snoozed=True)["data"]["tasks"][0]["id"] == task_id
    call(person, "task_snooze", task_id=task_id, until=None)
    assert call(person, "task_get", task_id=task_id)["data"]["name"] == "Bank"

    cases: list[tuple[str, dict[str, Any], str]] = [
        ("task_create", {"name": "x", "goal": "y", "start_at": "2020-01-01T00:00:00Z"}, "in the past"),
        ("task_create", {"name": "x", "goal": "y", "start_at": "tomorrow"}, "start_at"),
        ("task_create", {"name": "a\nb", "goal": "y"}, "name"),
        ("task_update", {"task_id": "none", "priority": 1}, "no task with this id"),
        ("task_update", {"task_id": task_id, "priority": 9}, "priority"),
        ("task_snooze", {"task_id": task_id, "until": "2100-01-01T00:00:00"}, "until"),
        ("task_snooze", {"task_id": task_id}, "until"),
        ("task_list", {"order": "size"}, "order"),
        ("task_get", {"task_id": task_id, "user_id": 1}, "user_id"),
    ]
    for name, arguments, reason in cases:
        refused = call(person, name, **arguments)
        assert (refused["success"], reason in str(refused["error"])) == (False, True), (
            name,
            arguments,
            refused,
        )

    stranger, reader = join(tenant_id, level=2), join(tenant_id, level=1)
    for name, arguments in (
        ("task_get", {}),
        ("task_update", {"priority": 5}),
        ("task_snooze", {"until": due}),
        ("task_delete", {}),
    ):
        assert call(stranger, name, task_id=task_id, **arguments)["error"] == "no task with this id"
    assert "permission level" in call(reader, "task_create", name="x", goal="y")["error"]
    assert call(reader, "task_list")["data"] == {"tasks": [], "total": 0}

    explained = person.good("GET", "/permissions/explain", params={"tool": "task_delete"})
    assert explained["action"] == "ask"
    person.good("PUT", "/permissions/rules", json=[{"tool": "task_*", "action": "deny"}])
    assert not call(person, "task_delete", task_id=task_id)["success"]
    person.good("PUT", "/permissions/rules", json=[])
    assert call(person, "task_delete", task_id=task_id)["data"] == {"deleted": task_id, "name": "Bank"}
    person.bad("GET", f"/tasks/{task_id}", 404)
