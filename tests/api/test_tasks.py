"""Tasks through the API: their graphs, documents, versions and templates. Nothing here executes a task."""

import itertools
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from api.client import UUID7, ApiClient
from api.conftest import connect
from api.server_process import ServerProcess
from luxx.infra.clock import new_id
from luxx.providers.scripted import ScriptedProvider

numbers = itertools.count()
STEPS: list[dict[str, Any]] = [
    {"id": "collect", "name": "Collect sources", "goal": "Ten sources."},
    {"id": "read", "name": "Read them", "depends_on": ["collect"], "expected_output": "Notes."},
    {"id": "outline", "name": "Outline", "depends_on": ["collect"], "required_tools": ["file_write"]},
    {"id": "write", "name": "Write", "depends_on": ["read", "outline"], "require_approval": True},
]
REPORT: dict[str, Any] = {
    "name": "Report",
    "goal": "A report on solar cells",
    "steps": STEPS,
    "max_concurrent_steps": 2,
    "metadata": {"topic": "solar", "parts": [1, 2.5, None, {"deep": True}]},
}


@pytest.fixture
def task(anna: ApiClient) -> dict[str, Any]:
    created: dict[str, Any] = anna.good("POST", "/tasks", json=REPORT)
    return created


def ids(steps: list[dict[str, Any]]) -> list[str]:
    return [step["id"] for step in steps]


def change_database(server: ServerProcess, *statements: tuple[str, dict[str, Any]]) -> None:
    """What an execution stores in the tables of tasks and runs."""
    with sqlite3.connect(server.data_dir / "luxx.db", timeout=20) as connection:
        for statement, values in statements:
            assert connection.execute(statement, values).rowcount == 1
    connection.close()


def set_run(
    server: ServerProcess, task: dict[str, Any], user: dict[str, Any], status: str, reason: str | None = None
) -> str:
    """Gives the task a newest run with this status and stop reason."""
    run_id = new_id()
    is_ended = status in ("completed", "failed", "cancelled")
    values = {
        "id": run_id, "user_id": user["id"], "tenant_id": user["tenant_id"], "subject_id": task["id"],
        "status": status, "reason": reason, "finished_at": "2026-01-01 00:00:00" if is_ended else None,
    }  # fmt: skip
    insert = (
        "INSERT INTO runs (id, user_id, tenant_id, kind, subject_id, status, usage, last_seq, request, owner,"
        " fence, is_cancelled, losses, stored_bytes, driven_seconds, created_at, finished_at, stop_reason)"
        " VALUES (:id, :user_id, :tenant_id, 'task', :subject_id, :status, '{}', 0, '{}', 'elsewhere',"
        " 0, 0, 0, 0, 0, '2026-01-01 00:00:00', :finished_at, :reason)"
    )
    set_newest = "UPDATE tasks SET run_id = :run_id WHERE id = :id"
    change_database(server, (insert, values), (set_newest, {"run_id": run_id, "id": task["id"]}))
    return run_id


def test_runs_have_the_name_of_their_task(
    server: ServerProcess, anna: ApiClient, bob: ApiClient, task: dict[str, Any]
) -> None:
    run_id = set_run(server, task, anna.user, "completed")
    (run,) = anna.good("GET", "/runs", params={"subject_id": task["id"]})["items"]
    assert (run["title"], anna.good("GET", f"/runs/{run_id}")["title"]) == (task["name"], task["name"])
    bob.bad("GET", f"/runs/{run_id}", 404)


def set_step(server: ServerProcess, task: dict[str, Any], step_id: str, **fields: Any) -> None:
    assignments = ", ".join(f"{name} = :{name}" for name in fields)
    statement = f"UPDATE task_steps SET {assignments} WHERE task_id = :task_id AND id = :step_id"
    change_database(server, (statement, {"task_id": task["id"], "step_id": step_id, **fields}))


def test_a_task_is_stored_shown_changed_listed_and_deleted(anna: ApiClient) -> None:
    project_id = anna.good("POST", "/projects", json={"name": "energy"})["id"]
    created = anna.good("POST", "/tasks", json={**REPORT, "project_id": project_id})
    assert UUID7.fullmatch(created["id"])
    assert created["status"] == "pending"
    assert (created["metadata"], created["project_id"]) == (REPORT["metadata"], project_id)
    assert ids(created["steps"]) == ids(STEPS)
    for step, given in zip(created["steps"], STEPS, strict=True):
        assert {name: step[name] for name in given} == given
        assert (step["status"], step["attempts"], step["output"], step["tool_calls"]) == (
            "pending",
            0,
            None,
            [],
        )
    path = f"/tasks/{created['id']}"
    assert anna.good("GET", path) == created
    changed = anna.good("PUT", path, json={"name": "  Better ", "metadata": {}, "project_id": None})
    assert (changed["name"], changed["metadata"], changed["project_id"]) == ("Better", {}, None)
    assert changed["steps"] == created["steps"]
    assert changed["max_concurrent_steps"] == 2, "omitted fields do not change"
    listed = anna.good("GET", "/tasks?page_size=1")["items"][0]
    assert (listed["id"], listed["step_counts"]) == (created["id"], {"pending": 4})
    anna.good("DELETE", path)
    assert anna.bad("GET", path, 404)["detail"]["kind"] == "task_not_found"


def test_lists_are_filtered_by_status_project_and_text(
    join: Callable[..., ApiClient], tenant_id: int, server: ServerProcess
) -> None:
    person = join(tenant_id)
    project_id = person.good("POST", "/projects", json={"name": "energy"})["id"]
    first = person.good(
        "POST", "/tasks", json={"name": "Straße", "goal": "50% of it", "project_id": project_id}
    )
    second = person.good("POST", "/tasks", json={"name": "Other", "goal": "The NEXT one"})
    set_run(server, second, person.user, "failed")

    def found(**query: str) -> list[str]:
        page = person.good("GET", "/tasks", params=query)
        assert page["total"] == len(page["items"])
        return ids(page["items"])

    assert found() == [second["id"], first["id"]], "newest first"
    assert found(status="pending") == [first["id"]]
    assert found(status="failed") == [second["id"]]
    assert found(status="failed", project_id=project_id) == []
    assert found(project_id=project_id) == [first["id"]]
    assert found(q="strasse") == found(q="50%") == [first["id"]]
    assert found(q="next") == [second["id"]]
    assert found(q="5_%") == []


def test_lists_are_ordered_by_urgency_and_leave_out_what_is_snoozed(
    join: Callable[..., ApiClient], tenant_id: int, server: ServerProcess
) -> None:
    person = join(tenant_id)

    def created(name: str, **fields: Any) -> str:
        return str(person.good("POST", "/tasks", json={"name": name, "goal": name, **fields})["id"])

    later = created("later", priority=2, due_at="2100-02-01T00:00:00+01:00")
    plain = created("plain")
    soon = created("soon", priority=2, due_at="2100-01-01T00:00:00Z", start_at="2099-12-01T00:00:00Z")
    hidden = created("hidden", priority=1, snoozed_until="2100-01-01T00:00:00Z")
    shown = person.good("GET", f"/tasks/{later}")
    assert (shown["due_at"], shown["start_at"]) == ("2100-01-31T23:00:00Z", None)

    def found(**query: str) -> list[str]:
        return ids(person.good("GET", "/tasks", params=query)["items"])

    assert found() == [soon, plain, later]
    assert found(snoozed="true") == [hidden, soon, plain, later]
    assert found(order="due") == [soon, later, plain]
    assert found(order="priority", snoozed="true") == [hidden, soon, later, plain]
    assert found(priority="2") == [soon, later]
    assert found(due_before="2100-01-02T00:00:00Z") == [soon]
    assert found(due_before="9999-12-31T23:59:59-12:00") == [soon, later]
    assert found(due_before="0001-01-01T00:00:00+12:00") == []
    change_database(
        server, ("UPDATE tasks SET snoozed_until = '2020-01-01 00:00:00' WHERE id = :id", {"id": hidden})
    )
    assert found() == [hidden, soon, plain, later], "a snooze ends by itself"
    kept = person.good(
        "PUT", f"/tasks/{hidden}", json={"snoozed_until": "2020-01-01T00:00:00Z", "priority": 5}
    )
    assert kept["priority"] == 5, "what a task has already is not refused"
    wrong = person.bad("PUT", f"/tasks/{soon}", 400, json={"due_at": "2099-01-01T00:00:00Z"})
    assert "due before it starts" in wrong["error"]
    copied = person.ask("GET", f"/tasks/{soon}/export?format=json").json()
    assert copied["priority"] == 2
    assert "start_at" not in copied
    template = person.good("POST", "/task-templates", json={"name": "Soon", "document": copied})
    made = person.good(
        "POST", f"/task-templates/{template['id']}/instantiate", json={"due_at": "2100-03-01T00:00:00Z"}
    )
    assert (made["priority"], made["due_at"], made["start_at"]) == (2, "2100-03-01T00:00:00Z", None)
    for query in ({"priority": "9"}, {"order": "size"}, {"due_before": "today"}, {"snoozed": "perhaps"}):
        person.bad("GET", "/tasks", 400, params=query)


def test_the_graph_has_edges_levels_order_and_the_longest_chain(
    anna: ApiClient, task: dict[str, Any], server: ServerProcess
) -> None:
    path = f"/tasks/{task['id']}/graph"
    graph = anna.good("GET", path)
    assert graph["levels"] == [["collect"], ["read", "outline"], ["write"]]
    assert graph["order"] == ["collect", "read", "outline", "write"]
    assert {(edge["source"], edge["target"]) for edge in graph["edges"]} == {
        ("collect", "read"), ("collect", "outline"), ("read", "write"), ("outline", "write")
    }  # fmt: skip
    assert (graph["valid"], graph["problems"]) == (True, [])
    assert graph["nodes"][0] == {"id": "collect", "name": "Collect sources", "status": "pending"}
    assert graph["critical_path"] == ["collect", "read", "write"]
    set_step(server, task, "read", duration_ms=10)
    set_step(server, task, "outline", duration_ms=20)
    assert anna.good("GET", path)["critical_path"] == ["collect", "outline", "write"]
    for format, media, edge in (
        ("mermaid", "text/vnd.mermaid", "s0 --> s1"), ("dot", "text/vnd.graphviz", "s0 -> s1;")
    ):  # fmt: skip
        drawing = anna.ask("GET", f"{path}?format={format}")
        assert drawing.headers["content-type"].startswith(media)
        assert edge in drawing.text
        assert "Collect sources" in drawing.text


def test_ready_steps_are_those_whose_dependencies_are_completed(
    anna: ApiClient, task: dict[str, Any], server: ServerProcess
) -> None:
    path = f"/tasks/{task['id']}/ready-steps"
    assert ids(anna.good("GET", path)) == ["collect"]
    set_step(server, task, "collect", status="completed")
    assert ids(anna.good("GET", path)) == ["read", "outline"]
    set_step(server, task, "read", status="failed")
    set_step(server, task, "outline", status="completed")
    assert anna.good("GET", path) == []


def test_steps_are_added_with_ids_and_may_depend_on_all_others(anna: ApiClient, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}/steps"
    steps = [
        {"name": "Check"},
        {"name": "Send", "depends_on": ["s7", "write", "write"]},
        {"id": "s7", "name": "x"},
    ]
    changed = anna.good("POST", path, json={"steps": steps})
    assert ids(changed["steps"]) == [*ids(STEPS), "s8", "s9", "s7"]
    assert changed["steps"][5]["depends_on"] == ["s7", "write"]


def test_a_changed_step_loses_its_results_and_so_do_those_that_depend_on_it(
    anna: ApiClient, task: dict[str, Any], server: ServerProcess
) -> None:
    for step_id in ids(STEPS):
        set_step(server, task, step_id, status="completed", output=f"of {step_id}", attempts=2)
    path = f"/tasks/{task['id']}"

    def outputs() -> list[str | None]:
        return [step["output"] for step in anna.good("GET", path)["steps"]]

    renamed = anna.good("PUT", f"{path}/steps/collect", json={"name": "Gather", "require_approval": True})
    assert (renamed["name"], renamed["output"]) == ("Gather", "of collect"), "the goal is the same"
    changed = anna.good("PUT", f"{path}/steps/read", json={"goal": "Read two of them."})
    assert (changed["status"], changed["output"], changed["attempts"]) == ("pending", None, 0)
    assert outputs() == ["of collect", None, "of outline", None]
    graph = [{**STEPS[2], "depends_on": []}, {**STEPS[0], "name": "Again"}]
    anna.good("PUT", f"{path}/graph", json={"steps": graph})
    assert outputs() == [None, "of collect"]


def test_a_step_is_deleted_unless_others_need_it(anna: ApiClient, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}/steps"
    refused = anna.bad("DELETE", f"{path}/read", 409)
    assert (refused["detail"]["kind"], refused["detail"]["step_ids"]) == ("task_step_needed", ["write"])
    anna.good("DELETE", f"{path}/write")
    anna.good("DELETE", f"{path}/read")
    assert ids(anna.good("GET", f"/tasks/{task['id']}")["steps"]) == ["collect", "outline"]
    assert anna.bad("DELETE", f"{path}/read", 404)["detail"]["kind"] == "task_step_not_found"


def test_every_change_of_the_graph_keeps_the_one_before(anna: ApiClient, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}"
    assert anna.good("GET", f"{path}/versions")["items"] == []
    anna.good("PUT", f"{path}/steps/write", json={"name": "Write it"})
    anna.good("PUT", f"{path}/steps/write", json={"name": "Write it"})
    anna.good("PUT", path, json={"name": "Renamed"})
    (only,) = anna.good("GET", f"{path}/versions")["items"]
    assert (only["number"], only["step_count"]) == (1, 4), "equal graphs are no change"
    anna.good("DELETE", f"{path}/steps/write")
    anna.good("PUT", f"{path}/graph", json={"steps": []})
    assert [one["step_count"] for one in anna.good("GET", f"{path}/versions")["items"]] == [3, 4, 4]
    first = anna.good("GET", f"{path}/versions/1")
    restored = anna.good("PUT", f"{path}/graph", json={"steps": first["steps"]})
    assert [step["name"] for step in restored["steps"]] == [step["name"] for step in STEPS]
    assert anna.good("GET", f"{path}/versions")["total"] == 3, "an empty graph is no version"
    for number in (0, 4, 2**40):
        assert anna.bad("GET", f"{path}/versions/{number}", 404)["detail"]["kind"] == "task_version_not_found"


def test_the_newest_fifty_versions_are_kept(anna: ApiClient, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}"
    for number in range(53):
        anna.good("PUT", f"{path}/steps/read", json={"goal": f"goal {number}"})
    versions = anna.good("GET", f"{path}/versions?page_size=100")
    assert [one["number"] for one in versions["items"]] == list(range(53, 3, -1))


STATUS_OF_RUN = {
    "queued": "running",
    "running": "running",
    "waiting": "block",
    "paused": "block",
    "failed": "failed",
    "cancelled": "terminated",
}


@pytest.mark.parametrize("run_status", STATUS_OF_RUN)
def test_the_status_follows_from_the_newest_run(
    anna: ApiClient, task: dict[str, Any], server: ServerProcess, run_status: str
) -> None:
    run_id = set_run(server, task, anna.user, run_status)
    shown = anna.good("GET", f"/tasks/{task['id']}")
    assert (shown["status"], shown["run_id"]) == (STATUS_OF_RUN[run_status], run_id)
    set_run(server, task, anna.user, "failed")
    assert anna.good("GET", f"/tasks/{task['id']}")["status"] == "failed"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("completed", "completed", "completed", "completed"), "completed"),
        (("completed", "completed", "skipped", "completed"), "completed"),
        (("completed", "failed", "completed", "skipped"), "failed"),
        (("completed", "completed", "completed", "pending"), "pending"),
        (("failed", "completed", "completed", "pending"), "failed"),
    ],
)
@pytest.mark.parametrize("run", [("completed", "finished"), ("failed", "steps_failed")])
def test_after_a_run_that_came_to_its_end_the_steps_decide(
    anna: ApiClient,
    task: dict[str, Any],
    server: ServerProcess,
    statuses: tuple[str, ...],
    expected: str,
    run: tuple[str, str],
) -> None:
    set_run(server, task, anna.user, *run)
    for step_id, status in zip(ids(STEPS), statuses, strict=True):
        set_step(server, task, step_id, status=status)
    assert anna.good("GET", f"/tasks/{task['id']}")["status"] == expected


@pytest.mark.parametrize("run_status", ["queued", "running", "waiting"])
def test_the_graph_does_not_change_during_a_run(
    anna: ApiClient, task: dict[str, Any], server: ServerProcess, run_status: str
) -> None:
    path = f"/tasks/{task['id']}"
    changes = (
        ("POST", f"{path}/steps", {"steps": [{"name": "more"}]}),
        ("PUT", f"{path}/graph", {"steps": STEPS[:1]}),
        ("PUT", f"{path}/steps/write", {"name": "new"}),
        ("DELETE", f"{path}/steps/write", None),
    )
    run_id = set_run(server, task, anna.user, run_status)
    before = anna.ask("GET", f"{path}/export").text
    for method, where, body in changes:
        refused = anna.bad(method, where, 409, json=body)
        assert refused["detail"] == {"kind": "run_active", "run_id": run_id}
    # The document has no statuses: the server may have begun a run that was queued.
    assert anna.ask("GET", f"{path}/export").text == before
    anna.good("PUT", path, json={"name": "the name may change"})
    set_run(server, task, anna.user, "paused")
    for method, where, body in changes:
        anna.good(method, where, json=body) if method == "POST" else None


def test_deleting_a_task_deletes_its_runs_and_rows(
    anna: ApiClient, task: dict[str, Any], server: ServerProcess
) -> None:
    anna.good("PUT", f"/tasks/{task['id']}/steps/write", json={"name": "new"})
    set_run(server, task, anna.user, "completed")
    run_id = set_run(server, task, anna.user, "failed")
    anna.good("GET", f"/runs/{run_id}")
    anna.good("DELETE", f"/tasks/{task['id']}")
    anna.bad("GET", f"/runs/{run_id}", 404)
    assert rows_of(server, task) == {"tasks": 0, "task_steps": 0, "task_versions": 0, "runs": 0}


def rows_of(server: ServerProcess, task: dict[str, Any]) -> dict[str, int]:
    columns = {"tasks": "id", "task_steps": "task_id", "task_versions": "task_id", "runs": "subject_id"}
    with sqlite3.connect(server.data_dir / "luxx.db") as connection:
        counts = {
            table: connection.execute(f"SELECT count(*) FROM {table} WHERE {column} = ?", (task["id"],))
            for table, column in columns.items()
        }
        found = {table: int(cursor.fetchone()[0]) for table, cursor in counts.items()}
    connection.close()
    return found


def test_deleting_a_user_deletes_their_tasks_and_templates(
    join: Callable[..., ApiClient], tenant_id: int, admin: ApiClient, server: ServerProcess
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    task = user.good("POST", "/tasks", json=REPORT)
    document = json.loads(user.ask("GET", f"/tasks/{task['id']}/export?format=json").text)
    template = user.good("POST", "/task-templates", json={"name": "mine", "document": document})
    admin.good("DELETE", f"/auth/users/{user.user['id']}")
    assert rows_of(server, task)["tasks"] == rows_of(server, task)["task_steps"] == 0
    boss.bad("GET", f"/task-templates/{template['id']}", 404)


def test_deleting_what_a_task_names_leaves_the_task(anna: ApiClient, upstream: ScriptedProvider) -> None:
    agent_id = anna.good("POST", "/agents", json={"name": "Writer"})["id"]
    project_id = anna.good("POST", "/projects", json={"name": "energy"})["id"]
    provider_id = connect(anna, upstream)
    steps = [{**STEPS[0], "agent_id": agent_id}]
    named = {"agent_id": agent_id, "project_id": project_id, "provider_id": provider_id}
    created = anna.good("POST", "/tasks", json={**REPORT, **named, "steps": steps})
    for path in (f"/agents/{agent_id}", f"/projects/{project_id}", f"/providers/{provider_id}"):
        anna.good("DELETE", path)
    left = anna.good("GET", f"/tasks/{created['id']}")
    assert {name: left[name] for name in named} == dict.fromkeys(named)
    assert left["steps"][0]["agent_id"] is None


# Wrong input


def step(**fields: Any) -> dict[str, Any]:
    return {"id": "one", "name": "One", **fields}


CYCLE = [step(depends_on=["two"]), {"id": "two", "name": "Two", "depends_on": ["one"]}]
MANY = [{"name": f"step {number}"} for number in range(201)]
DEPENDING = [
    {"id": f"d{number}", "name": "x", "depends_on": [f"d{before}" for before in range(number)]}
    for number in range(70)
]
LONG = [{"name": f"long {number}", "goal": "x" * 10_000} for number in range(21)]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"inner": value}
    return value


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no name": ({"name": None}, ("$.name",)),
    "an empty name": ({"name": ""}, ("$.name",)),
    "a blank name": ({"name": "  "}, ("$.name",)),
    "a name of two lines": ({"name": "a\nb"}, ("$.name",)),
    "a long name": ({"name": "x" * 201}, ("$.name",)),
    "a goal that is a number": ({"goal": 5}, ("$.goal",)),
    "a blank goal": ({"goal": " \n"}, ("$.goal",)),
    "a long goal": ({"goal": "x" * 10_001}, ("$.goal",)),
    "a goal with NUL": ({"goal": "a\x00b"}, ("$.goal",)),
    "a status": ({"status": "completed"}, ("$.status",)),
    "an own id": ({"id": "mine"}, ("$.id",)),
    "no concurrent steps": ({"max_concurrent_steps": 0}, ("$.max_concurrent_steps",)),
    "many concurrent steps": ({"max_concurrent_steps": 21}, ("$.max_concurrent_steps",)),
    "half a concurrent step": ({"max_concurrent_steps": 1.5}, ("$.max_concurrent_steps",)),
    "priority 0": ({"priority": 0}, ("$.priority",)),
    "priority 6": ({"priority": 6}, ("$.priority",)),
    "a priority in words": ({"priority": "high"}, ("$.priority",)),
    "a start without a time zone": ({"start_at": "2100-01-01T15:00:00"}, ("$.start_at",)),
    "a start in words": ({"start_at": "tomorrow 3 pm"}, ("$.start_at",)),
    "a start in the past": ({"start_at": "2020-01-01T00:00:00Z"}, ("$.start_at",)),
    "a snooze in the past": ({"snoozed_until": "2020-01-01T00:00:00Z"}, ("$.snoozed_until",)),
    "a time beyond UTC": ({"due_at": "9999-12-31T23:59:59-12:00"}, ("$.due_at",)),
    "a time before UTC": ({"due_at": "0001-01-01T00:00:00+12:00"}, ("$.due_at",)),
    "a due time before the start": (
        {"start_at": "2100-01-02T00:00:00Z", "due_at": "2100-01-01T00:00:00Z"},
        ("$.due_at",),
    ),
    "an approval in words": ({"require_approval": "yes"}, ("$.require_approval",)),
    "metadata in a list": ({"metadata": []}, ("$.metadata",)),
    "metadata of null": ({"metadata": None}, ("$.metadata",)),
    "large metadata": ({"metadata": {"a": "x" * 20_000}}, ("$.metadata",)),
    "deep metadata": ({"metadata": nested(12)}, ("$.metadata",)),
    "a huge number in metadata": ({"metadata": {"a": [10**30]}}, ("$.metadata.a[0]",)),
    "an agent by name": ({"agent_id": "Writer"}, ("$.agent_id",)),
    "a provider 0": ({"provider_id": 0}, ("$.provider_id",)),
    "a project by number": ({"project_id": 7}, ("$.project_id",)),
    "steps in an object": ({"steps": {}}, ("$.steps",)),
    "a step as text": ({"steps": ["write"]}, ("$.steps[0]",)),
    "a step without a name": ({"steps": [{"id": "one"}]}, ("$.steps[0].name",)),
    "a step with a status": ({"steps": [step(status="completed")]}, ("$.steps[0].status",)),
    "a step with an empty id": ({"steps": [step(id="")]}, ("$.steps[0].id",)),
    "a step with a slash in its id": ({"steps": [step(id="a/b")]}, ("$.steps[0].id",)),
    "a step with dots as its id": ({"steps": [step(id="..")]}, ("$.steps[0].id",)),
    "a step with a long id": ({"steps": [step(id="x" * 65)]}, ("$.steps[0].id",)),
    "a dependency as text": ({"steps": [step(depends_on="two")]}, ("$.steps[0].depends_on",)),
    "a dependency that is a number": ({"steps": [step(depends_on=[2])]}, ("$.steps[0].depends_on[0]",)),
    "a missing dependency": ({"steps": [step(depends_on=["two"])]}, ("$.steps[0].depends_on",)),
    "a step that needs itself": ({"steps": [step(depends_on=["one"])]}, ("$.steps[0].depends_on",)),
    "a cycle": ({"steps": CYCLE}, ("$.steps[0].depends_on",)),
    "two equal ids": ({"steps": [step(), step()]}, ("$.steps[1].id",)),
    "too many steps": ({"steps": MANY}, ("$.steps",)),
    "too many dependencies": ({"steps": DEPENDING}, ("$.steps",)),
    "too much text": ({"steps": LONG}, ("$.steps",)),
    "an unknown tool": ({"steps": [step(required_tools=["fly"])]}, ("$.steps[0].required_tools",)),
    "an unknown skill": ({"steps": [step(required_skills=["fly"])]}, ("$.steps[0].required_skills",)),
    "tools as text": ({"steps": [step(required_tools="file_read")]}, ("$.steps[0].required_tools",)),
    "a long thought": ({"steps": [step(thought_prompt="x" * 10_001)]}, ("$.steps[0].thought_prompt",)),
    "several faults": (
        {"name": "", "goal": 1, "steps": [step(status=1), {"id": 2}]},
        ("$.name", "$.goal", "$.steps[0].status", "$.steps[1].id", "$.steps[1].name"),
    ),
    "several faults of the graph": (
        {
            "metadata": {"a": 10**30},
            "steps": [step(depends_on=["one", "six"], required_tools=["fly"]), *CYCLE],
        },
        (
            "$.metadata.a", "$.steps[1].id", "$.steps[0].depends_on",
            "$.steps[0].required_tools",
        ),
    ),
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "long name and goal": {"name": "x" * 200, "goal": "x" * 10_000},
    "a goal of two lines": {"goal": "a\nb"},
    "bounds of concurrency": {"max_concurrent_steps": 20, "require_approval": True},
    "times": {
        "priority": 1,
        "start_at": "2100-01-01T15:00:00.500000Z",
        "due_at": "2100-01-01T15:00:00.500000Z",
    },
    "a due time that is over": {"priority": 5, "due_at": "2020-01-01T00:00:00Z"},
    "one concurrent step": {"max_concurrent_steps": 1.0},
    "deep metadata": {"metadata": nested(10)},
    "large numbers": {"metadata": {"a": [2**62, -1.5, True, None]}},
    "large metadata": {"metadata": {"a": "x" * 19_900}},
    "no steps": {"steps": []},
    "most steps": {"steps": MANY[:200]},
    "long ids": {"steps": [step(id="x" * 64), {"name": "y", "depends_on": ["x" * 64]}]},
    "known tools": {"steps": [step(required_tools=["file_read"], required_skills=[])]},
    "much text": {"steps": LONG[:19]},
    "a chain": {"steps": DEPENDING[:60]},
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_task_is_refused_with_every_field(anna: ApiClient, name: str) -> None:
    change, fields = BAD[name]
    before = anna.good("GET", "/tasks")["total"]
    refused = anna.bad("POST", "/tasks", 400, json={"name": "Bad", "goal": "None.", **change})
    assert set(fields) <= set(refused["detail"]["fields"]), refused
    assert anna.good("GET", "/tasks")["total"] == before
    if "steps" in change and len(change) == 1:
        path = f"/tasks/{anna.good('POST', '/tasks', json=REPORT)['id']}"
        refused = anna.bad("PUT", f"{path}/graph", 400, json=change)
        assert set(fields) <= set(refused["detail"]["fields"]), refused
        assert ids(anna.good("GET", path)["steps"]) == ids(STEPS)
        assert anna.good("GET", f"{path}/versions")["total"] == 0


@pytest.mark.parametrize("name", GOOD)
def test_what_is_within_the_limits_is_stored(anna: ApiClient, name: str) -> None:
    created = anna.good("POST", "/tasks", json={"name": "Good", "goal": "Some.", **GOOD[name]})
    for field, value in GOOD[name].items():
        if field != "steps":
            assert created[field] == value
    assert len(created["steps"]) == len(GOOD[name].get("steps", []))


def test_all_problems_of_a_graph_are_listed(anna: ApiClient, task: dict[str, Any]) -> None:
    graph = [
        *CYCLE,
        step(depends_on=["one", "nowhere"]),
        {"id": "three", "name": "x", "depends_on": ["two", "four"]},
    ]
    refused = anna.bad("PUT", f"/tasks/{task['id']}/graph", 400, json={"steps": graph})
    detail = refused["detail"]
    assert detail["kind"] == "graph_invalid"
    assert sorted(problem["kind"] for problem in detail["problems"]) == [
        "cycle", "duplicate_id", "missing_dependency", "missing_dependency", "self_dependency"
    ]  # fmt: skip
    assert detail["problem_count"] == 5
    assert "one → two" in json.dumps(detail["problems"], ensure_ascii=False)


BAD_CHANGES: dict[str, tuple[str, str, Any, str]] = {
    "no field": ("PUT", "", {"colour": 1}, "$.colour"),
    "no name": ("PUT", "", {"name": None}, "$.name"),
    "steps of a task": ("PUT", "", {"steps": []}, "$.steps"),
    "metadata": ("PUT", "", {"metadata": {"a": 10**30}}, "$.metadata.a"),
    "no steps to add": ("POST", "/steps", {"steps": []}, "$.steps"),
    "an id that is taken": ("POST", "/steps", {"steps": [{"id": "read", "name": "x"}]}, "$.steps[0].id"),
    "a new step with a missing dependency": (
        "POST", "/steps", {"steps": [{"name": "x", "depends_on": ["y"]}]}, "$.steps[0].depends_on",
    ),
    "too many steps together": ("POST", "/steps", {"steps": MANY[:197]}, "$.steps"),
    "another id": ("PUT", "/steps/read", {"id": "reads"}, "$.id"),
    "a status": ("PUT", "/steps/read", {"status": "completed"}, "$.status"),
    "a cycle": ("PUT", "/steps/collect", {"depends_on": ["write"]}, "$.depends_on"),
    "itself": ("PUT", "/steps/collect", {"depends_on": ["collect"]}, "$.depends_on"),
    "a missing dependency": ("PUT", "/steps/read", {"depends_on": ["nowhere"]}, "$.depends_on"),
    "an unknown tool": ("PUT", "/steps/read", {"required_tools": ["fly"]}, "$.required_tools"),
    "a null goal": ("PUT", "/steps/read", {"goal": None}, "$.goal"),
    "no graph": ("PUT", "/graph", {}, "$.steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_wrong_change_is_refused_and_changes_nothing(
    anna: ApiClient, task: dict[str, Any], name: str
) -> None:
    method, where, body, field = BAD_CHANGES[name]
    refused = anna.bad(method, f"/tasks/{task['id']}{where}", 400, json=body)
    assert list(refused["detail"]["fields"]) == [field]
    assert anna.good("GET", f"/tasks/{task['id']}") == task


@pytest.mark.parametrize(
    ("path", "body", "field", "kind"),
    [
        ("", {"agent_id": 987654}, "$.agent_id", "agent_not_found"),
        ("", {"provider_id": 987654}, "$.provider_id", "provider_not_found"),
        ("", {"project_id": new_id()}, "$.project_id", "project_not_found"),
        ("/steps/read", {"agent_id": 987654}, "$.agent_id", "agent_not_found"),
        ("/graph", {"steps": [step(agent_id=987654)]}, "$.steps[0].agent_id", "agent_not_found"),
    ],
)
def test_what_is_not_there_is_404_with_the_field(
    anna: ApiClient, task: dict[str, Any], path: str, body: dict[str, Any], field: str, kind: str
) -> None:
    refused = anna.bad("PUT", f"/tasks/{task['id']}{path}", 404, json=body)
    assert (list(refused["detail"]["fields"]), refused["detail"]["kind"]) == ([field], kind)
    assert anna.good("GET", f"/tasks/{task['id']}") == task


def test_an_agent_that_is_gone_does_not_prevent_other_changes(
    join: Callable[..., ApiClient], tenant_id: int
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    agent_id = boss.good("POST", "/agents", json={"name": "Team", "is_shared": True})["id"]
    created = user.good("POST", "/tasks", json={**REPORT, "steps": [step(agent_id=agent_id)]})
    boss.good("PUT", f"/agents/{agent_id}", json={"is_shared": False})
    path = f"/tasks/{created['id']}"
    assert user.good("PUT", f"{path}/steps/one", json={"name": "new"})["agent_id"] == agent_id
    user.good("POST", f"{path}/steps", json={"steps": [{"name": "more"}]})
    assert user.bad("PUT", f"{path}/steps/one", 404, json={"agent_id": agent_id})
    exported = json.loads(user.ask("GET", f"{path}/export?format=json").text)
    assert "agent" not in exported["steps"][0], "its name is not theirs to see"


# Templates


@pytest.fixture
def report(anna: ApiClient, task: dict[str, Any]) -> dict[str, Any]:
    """The document of the task."""
    exported: dict[str, Any] = json.loads(anna.ask("GET", f"/tasks/{task['id']}/export?format=json").text)
    return exported


def test_a_template_becomes_tasks(anna: ApiClient, report: dict[str, Any]) -> None:
    body = {"name": " Reports ", "description": "of ten sources", "document": report}
    template = anna.good("POST", "/task-templates", json=body)
    assert (template["name"], template["document"]) == ("Reports", report)
    path = f"/task-templates/{template['id']}"
    assert anna.good("GET", path) == template
    listed = anna.good("GET", "/task-templates")["items"][0]
    assert listed == {name: value for name, value in template.items() if name != "document"}

    plain = anna.good("POST", f"{path}/instantiate", json={})
    assert (plain["name"], plain["goal"], ids(plain["steps"])) == (report["name"], report["goal"], ids(STEPS))
    agent_id = anna.good("POST", "/agents", json={"name": "Writer"})["id"]
    given = {"name": "Wind", "goal": "A report on wind", "agent_id": agent_id}
    other = anna.good("POST", f"{path}/instantiate", json=given)
    assert {name: other[name] for name in given} == given
    changed = anna.good("PUT", path, json={"document": {**report, "steps": []}, "description": ""})
    assert "steps" not in changed["document"]
    anna.good("DELETE", path)
    assert anna.bad("GET", path, 404)["detail"]["kind"] == "task_template_not_found"
    assert len(anna.good("GET", f"/tasks/{other['id']}")["steps"]) == 4


def test_a_wrong_template_is_refused_with_every_field(anna: ApiClient, report: dict[str, Any]) -> None:
    total = anna.good("GET", "/task-templates")["total"]
    wrong = {**report, "steps": [{"id": "a", "name": "A", "depends_on": ["b"], "required_tools": ["fly"]}]}
    refused = anna.bad("POST", "/task-templates", 400, json={"name": "x", "document": wrong})
    assert set(refused["detail"]["fields"]) == {
        "$.document.steps[0].depends_on", "$.document.steps[0].required_tools"
    }  # fmt: skip
    refused = anna.bad(
        "POST", "/task-templates", 400, json={"name": "x", "document": {**report, "version": 2}}
    )
    assert list(refused["detail"]["fields"]) == ["$.document.version"]
    missing = {**report, "agent": "Nobody"}
    refused = anna.bad("POST", "/task-templates", 400, json={"name": "x", "document": missing})
    assert list(refused["detail"]["fields"]) == ["$.document.agent"]
    # Unknown and mistyped fields do not hide the other problems.
    mixed = {**wrong, "colour": "red", "agent": "Nobody"}
    refused = anna.bad("POST", "/task-templates", 400, json={"name": 7, "shared": True, "document": mixed})
    fields = {
        "$.document.colour", "$.document.agent",
        "$.document.steps[0].depends_on", "$.document.steps[0].required_tools",
    }  # fmt: skip
    assert set(refused["detail"]["fields"]) == {"$.name", "$.shared", *fields}
    assert anna.good("GET", "/task-templates")["total"] == total
    template = anna.good("POST", "/task-templates", json={"name": "x", "document": report})
    refused = anna.bad("PUT", f"/task-templates/{template['id']}", 400, json={"name": 7, "document": mixed})
    assert set(refused["detail"]["fields"]) == {"$.name", *fields}
    assert anna.good("GET", f"/task-templates/{template['id']}") == template


def test_an_administrator_shares_a_template_and_a_user_does_not(
    join: Callable[..., ApiClient], tenant_id: int, report: dict[str, Any], admin: ApiClient
) -> None:
    boss, other_boss, user = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id)
    private = boss.good("POST", "/agents", json={"name": "Private"})["id"]
    document = {**report, "agent": "Private"}
    body = {"name": "Team", "document": document, "is_shared": True}
    assert (
        "only an administrator"
        in user.bad("POST", "/task-templates", 403, json={**body, "document": report})["error"]
    )
    template = boss.good("POST", "/task-templates", json=body)
    path = f"/task-templates/{template['id']}"
    assert user.good("GET", path)["is_own"] is False
    refused = user.bad("POST", f"{path}/instantiate", 400, json={})
    assert list(refused["detail"]["fields"]) == ["$.agent"]
    own = user.good("POST", "/agents", json={"name": "own"})["id"]
    assert user.good("POST", f"{path}/instantiate", json={"agent_id": own})["agent_id"] == own
    assert boss.good("POST", f"{path}/instantiate", json={})["agent_id"] == private
    user.bad("PUT", path, 403, json={"name": "mine"})
    user.bad("DELETE", path, 403)
    admin.bad("GET", path, 404)
    assert "another administrator" in other_boss.bad("PUT", path, 403, json={"name": "mine"})["error"]
    assert other_boss.good("PUT", path, json={"is_shared": False})["is_shared"] is False
    user.bad("GET", path, 404)
    other_boss.bad("GET", path, 404)


def test_another_administrator_takes_over_a_shared_template(
    join: Callable[..., ApiClient], tenant_id: int, report: dict[str, Any], admin: ApiClient
) -> None:
    boss, other_boss, user = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id)
    template = boss.good(
        "POST", "/task-templates", json={"name": "Team", "document": report, "is_shared": True}
    )
    admin.good("DELETE", f"/auth/users/{boss.user['id']}")
    assert user.good("GET", f"/task-templates/{template['id']}")["user_id"] == other_boss.user["id"]
