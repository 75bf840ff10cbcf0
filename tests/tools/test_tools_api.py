"""/tools over HTTP: what a caller sees, runs and clears, and the errors for what it may not."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar
from litestar.di import Provide
from litestar.testing import TestClient
from migrated_databases import make_ready
from sample_user import add_user

from luxx.api.http.errors import HANDLERS
from luxx.api.http.request_input import JsonRequest
from luxx.api.routes.tools import (
    ClearCache,
    RulesAndTools,
    SkillsOf,
    ToolController,
    ToolsOf,
    WorkspaceOf,
)
from luxx.domain.accounts.caller import Caller
from luxx.domain.skills.skill import NO_SKILLS, SkillSet
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.tools.builtin import builtin_tools
from luxx.tools.core import CommandPermission, ToolRegistry, ToolSet
from luxx.tools.executor import ToolExecutor
from luxx.tools.factory import tool
from luxx.tools.history import MAX_OUTPUTS, CallOutputs
from luxx.wire.tool import PlacedRule

ClientAt = Callable[..., TestClient[Litestar]]


@tool(name="now", description="d", parameters={}, repeatable=True, category="clock")
def now(arguments: dict[str, Any]) -> int:
    return 1


@tool(name="long_text", description="d", parameters={"lines": {"type": "integer"}})
def long_text(arguments: dict[str, Any]) -> str:
    return LINE * arguments["lines"]


LINE = "one line\0 of many\n"


class Clock:
    """Minutes after the present."""

    minutes = 0.0

    def __call__(self) -> datetime:
        return utc_now() + timedelta(minutes=self.minutes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def skills_of(caller: Caller) -> SkillSet:
    return NO_SKILLS


async def given_skills() -> SkillsOf:
    return skills_of


@pytest.fixture
def client_at(workspace: Path, tmp_path: Path, clock: Clock) -> Iterator[ClientAt]:
    executor = ToolExecutor(ToolRegistry([*builtin_tools(), now, long_text]), ToolsConfig())
    engine = open_engine(resolve_url("sqlite:///t.db", tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    outputs = CallOutputs(store, clock)

    async def given_outputs() -> CallOutputs:
        return outputs

    async def workspace_of(caller: Caller) -> Path:
        return workspace

    async def rules_and_tools(caller: Caller, name: str) -> tuple[tuple[PlacedRule, ...], ToolSet]:
        return (), executor.registry

    async def given_rules_and_tools() -> RulesAndTools:
        return rules_and_tools

    async def given_workspace() -> WorkspaceOf:
        return workspace_of

    async def tools_of(caller: Caller, names: Collection[str] | None) -> ToolSet:
        return executor.registry

    async def given_tools() -> ToolsOf:
        return tools_of

    async def given_executor() -> ToolExecutor:
        return executor

    async def given_clear_cache() -> ClearCache:
        return executor.clear_cache

    with ExitStack() as stack:

        def make(level: int = 4, user_id: int = 1) -> TestClient[Litestar]:
            async def given_caller() -> Caller:
                return Caller(
                    user_id=user_id,
                    tenant_id=1,
                    username="ann",
                    permission_level=CommandPermission(level),
                    sign_in_id="s",
                )

            app = Litestar(
                [ToolController],
                request_class=JsonRequest,
                dependencies={
                    "caller": Provide(given_caller),
                    "tool_executor": Provide(given_executor),
                    "call_outputs": Provide(given_outputs),
                    "clear_tool_cache": Provide(given_clear_cache),
                    "workspace_of": Provide(given_workspace),
                    "rules_and_tools": Provide(given_rules_and_tools),
                    "tools_of": Provide(given_tools),
                    "skills_of": Provide(given_skills),
                },
                exception_handlers=HANDLERS,
            )
            return stack.enter_context(TestClient(app))

        yield make
    store.close()


def test_a_result_that_was_cut_is_read_on_by_its_caller_until_it_expires(
    client_at: ClientAt, clock: Clock
) -> None:
    body = {"arguments": {"lines": 6000}}
    cut = client_at().post("/tools/long_text/execute", json=body).json()["data"]
    assert f"Read on within 60 minutes with GET /tools/results/{cut['ref']}?offset=…&limit=…" in cut["data"]
    path, whole = f"/tools/results/{cut['ref']}", LINE.replace("\0", "\ufffd") * 6000
    first = client_at().get(path, params={"limit": 100_000}).json()["data"]
    assert first == {"output": whole[:100_000], "offset": 0, "total": len(whole), "has_more": True}
    rest = client_at().get(path, params={"offset": 100_000}).json()["data"]
    assert (rest["output"], rest["has_more"]) == (whole[100_000:], False)
    other = client_at(user_id=2).get(path)
    assert (other.status_code, other.json()["detail"]["kind"]) == (404, "result_not_found")
    clock.minutes = 61
    assert client_at().get(path).status_code == 404
    short = client_at().post("/tools/long_text/execute", json={"arguments": {"lines": 1}}).json()["data"]
    assert set(short) == {"success", "data", "error"}


def test_the_newest_cut_results_of_a_caller_are_stored(client_at: ClientAt) -> None:
    client = client_at()
    refs = [
        client.post("/tools/long_text/execute", json={"arguments": {"lines": 4000}}).json()["data"]["ref"]
        for _ in range(MAX_OUTPUTS + 1)
    ]
    codes = [client.get(f"/tools/results/{ref}").status_code for ref in refs]
    assert codes == [404, *[200] * MAX_OUTPUTS]


def names(answer: Any) -> list[str]:
    return [item["name"] for item in answer.json()["data"]["items"]]


def test_only_tools_at_the_callers_level_are_listed(client_at: ClientAt) -> None:
    for level in (1, 2, 3):
        hidden = {each.name for each in builtin_tools() if each.required_permission > level}
        assert bool(hidden) == (level < 3)
        answer = client_at(level).get("/tools?page_size=100")
        assert answer.status_code == 200
        everything = {definition.name for definition in builtin_tools()} | {"now", "long_text"}
        assert set(names(answer)) == everything - hidden
        assert answer.json()["data"]["total"] == len(everything - hidden)


def test_the_list_can_be_narrowed_and_paged(client_at: ClientAt) -> None:
    client = client_at()
    assert names(client.get("/tools?category=clock")) == ["now"]
    assert names(client.get("/tools?category=none")) == []
    everything = names(client.get("/tools?page_size=100"))
    full, rest = divmod(len(everything), 3)
    pages = [names(client.get(f"/tools?page={page}&page_size=3")) for page in range(1, full + 3)]
    assert [len(page) for page in pages] == [*[3] * full, rest, 0]
    assert [name for page in pages for name in page] == everything
    for query in ("page=0", "page_size=101", "page=x"):
        assert client.get(f"/tools?{query}").status_code == 400


def test_a_tool_is_shown_with_all_of_its_fields(client_at: ClientAt) -> None:
    assert client_at().get("/tools/now").json() == {
        "success": True,
        "message": "",
        "data": {
            "name": "now",
            "description": "d",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
            "category": "clock",
            "required_permission": 1,
            "risk": "low",
        },
    }


def test_a_tool_above_the_level_looks_like_no_tool(client_at: ClientAt) -> None:
    client = client_at(1)
    above, missing = client.get("/tools/python_eval"), client.get("/tools/missing")
    assert (above.status_code, missing.status_code) == (404, 404)
    assert above.json()["detail"] == missing.json()["detail"]


def test_running_a_tool_gives_its_result(client_at: ClientAt, workspace: Path) -> None:
    client = client_at()
    wrote = client.post("/tools/file_write/execute", json={"arguments": {"path": "a", "content": "x"}})
    assert wrote.status_code == 200
    assert wrote.json()["success"] is True
    assert wrote.json()["data"]["success"] is True
    assert (workspace / "a").read_text() == "x"
    failed = client.post("/tools/file_read/execute", json={"arguments": {"path": "b"}})
    assert failed.status_code == 200
    assert failed.json()["data"] == {"success": False, "data": None, "error": "b does not exist"}


@pytest.mark.parametrize(
    ("level", "name", "body", "status"),
    [
        (2, "python_eval", {"arguments": {"expression": "1"}}, 403),
        (1, "file_write", {"arguments": {"path": "a", "content": ""}}, 403),
        (4, "missing", {"arguments": {}}, 404),
        (4, "file_read", {"arguments": {}}, 400),
        (4, "file_read", {"arguments": {"path": 1}}, 400),
        (4, "file_read", {"arguments": []}, 400),
        (4, "file_read", {"argument": {}}, 400),
        (4, "file_read", "text", 400),
    ],
)
def test_a_refused_call_has_the_error_envelope(
    level: int, name: str, body: Any, status: int, client_at: ClientAt, workspace: Path
) -> None:
    answer = client_at(level).post(f"/tools/{name}/execute", json=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["success"]) == (status, status, False)
    assert answer.json()["error"]
    assert not list(workspace.iterdir())


def test_wrong_arguments_are_named_by_their_path(client_at: ClientAt) -> None:
    answer = client_at().post("/tools/file_read/execute", json={"arguments": {"pth": "a"}})
    assert answer.json()["detail"]["kind"] == "arguments_invalid"
    assert set(answer.json()["detail"]["fields"]) == {"arguments.path", "arguments.pth"}


def test_a_caller_clears_only_its_own_cached_answers(client_at: ClientAt) -> None:
    first_client, second_client = client_at(user_id=1), client_at(user_id=2)
    for client in (first_client, second_client):
        assert client.post("/tools/now/execute", json={}).json()["data"]["data"] == 1
    assert first_client.delete("/tools/cache").json()["data"] == {"cleared": 1}
    assert first_client.delete("/tools/cache").json()["data"] == {"cleared": 0}
    assert second_client.delete("/tools/cache").json()["data"] == {"cleared": 1}


def test_the_routes_are_described(client_at: ClientAt) -> None:
    schema = client_at().app.openapi_schema.to_schema()
    assert set(schema["paths"]) == {
        "/tools",
        "/tools/{name}",
        "/tools/{name}/execute",
        "/tools/cache",
        "/tools/results/{ref}",
    }
    for path in schema["paths"].values():
        for operation in path.values():
            shown = {parameter["name"] for parameter in operation.get("parameters", [])}
            assert shown <= {"name", "category", "page", "page_size", "ref", "offset", "limit"}
