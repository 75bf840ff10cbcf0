"""Artifacts at two servers of one PostgreSQL, and at one server on SQLite: the same files, one version of two
edits, limits, and what deletion leaves."""

import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess
from sqlalchemy import create_engine, delete, func, select
from store.databases import new_database

from artifacts.test_regeneration import JSON, ended
from luxx.features.artifacts.models import ArtifactRenderRow, ArtifactRow
from luxx.infra.store.tables import Base, table_of
from luxx.providers.scripted import Finish, Rule, Script, ScriptedProvider, Text

pytestmark = pytest.mark.heavy

SECRET = "a secret that all servers of one database share, long enough"
DECK = "# One\n\n- a\n\n---\n\n# Two\n\n| a | b |\n| --- | --- |\n| 1 | 机器 |\n\n---\n\n# Three\n\n> 12 %\n"
SOURCES = {
    "ppt": (DECK, ("pptx", "pdf")),
    "document": ("# One\n\nText.\n\n# Two\n\n1. x\n", ("docx", "pdf")),
    "report": ("# Lage\n\nText.\n\n# Zwei\n\n- 学习\n", ("pdf", "docx")),
    "sheet": (
        '{"sheets": [{"name": "A", "columns": [{"name": "n", "type": "number"}], "rows": [[1]]}]}', ("xlsx",)
    ),
    "chart": ('{"type": "bar", "labels": ["a"], "series": [{"name": "s", "values": [1]}]}', ("png", "svg")),
}  # fmt: skip
SETTINGS = {
    "LUXX_ARTIFACTS__VERSIONS": "4", "LUXX_ARTIFACTS__CACHE_MB": "1", "LUXX_LIMITS__STORAGE_MB_PER_USER": "1",
}  # fmt: skip


class Servers(NamedTuple):
    """Two servers of a database, which are the same one on SQLite, and its URL."""

    one: ServerProcess
    two: ServerProcess
    url: str

    def rows(self, statement: Any) -> Any:
        """All rows of a statement in the database."""
        engine = create_engine(self.url)
        with engine.begin() as connection:
            result = connection.execute(statement)
            found = result.all() if result.returns_rows else None
        engine.dispose()
        return found

    def holding(self, *ids: object) -> dict[str, int]:
        """The tables with rows that one of the ids names. What was spent stays, without any text, and for a
        moment the end of a run of somebody else, until its notice is sent."""
        found: dict[str, int] = {}
        for name, table in Base.metadata.tables.items():
            if name in ("usage_records", "run_ended"):
                continue
            named = [one for one in table.columns if one.name in ("id", "artifact_id", "subject_id")]
            for column in (one for one in named if one.type.python_type is str):
                query = select(func.count()).select_from(table).where(column.in_(ids))
                if count := self.rows(query)[0][0]:
                    found[name] = found.get(name, 0) + count
        return found


class People(NamedTuple):
    """The owner at both servers, and somebody else at the second one."""

    here: ApiClient
    there: ApiClient
    ben: ApiClient


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        if request.param == "sqlite":
            one = stack.enter_context(ServerProcess(folder, **SETTINGS))
            yield Servers(one, one, f"sqlite:///{one.data_dir}/luxx.db")
            return
        url = new_database(request.getfixturevalue("postgresql"), "artifacts")
        settings = {"LUXX_DATABASE__URL": url, "LUXX_APP__SECRET_KEY": SECRET, **SETTINGS}
        both = [
            stack.enter_context(ServerProcess(folder, data_dir=folder / name, **settings)) for name in "ab"
        ]
        yield Servers(both[0], both[1], url.replace("postgresql://", "postgresql+psycopg://"))


@pytest.fixture
def people(servers: Servers, request: pytest.FixtureRequest) -> Iterator[People]:
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    with (
        ApiClient(servers.one, None).register(f"anna{name}") as here,
        ApiClient(servers.two, None, here.token) as there,
        ApiClient(servers.two, None).register(f"ben{name}") as ben,
    ):
        there.user = here.user
        yield People(here, there, ben)


def create(person: ApiClient, type_: str = "ppt", content: str = DECK, **more: Any) -> str:
    body = {"type": type_, "name": "Talk", "content": content, **more}
    return str(person.good("POST", "/artifacts", json=body)["id"])


@pytest.mark.parametrize("servers", ["postgresql"], indirect=True)
def test_each_server_makes_the_same_file_of_a_version(servers: Servers, people: People) -> None:
    pytest.importorskip("rpptx")
    here, there, _ = people
    for type_, (content, formats) in SOURCES.items():
        artifact_id = create(here, type_, content)
        for format_ in formats:
            path = f"/artifacts/{artifact_id}/download?format={format_}"
            first = here.ask("GET", path)
            assert first.status_code == 200, first.text
            servers.rows(delete(ArtifactRenderRow))
            second = there.ask("GET", path)
            assert hashlib.sha256(second.content).digest() == hashlib.sha256(first.content).digest(), format_
        if type_ in ("ppt", "document", "report"):
            shown = [here.good("GET", f"/artifacts/{artifact_id}/preview")["pages"]]
            servers.rows(delete(ArtifactRenderRow))
            shown.append(there.good("GET", f"/artifacts/{artifact_id}/preview")["pages"])
            assert shown[0] == shown[1]
            assert all(page["sha256"] for page in shown[0])
    assert servers.rows(select(func.coalesce(func.sum(ArtifactRenderRow.size), 0)))[0][0] <= 2**20


@pytest.mark.timeout(300)
def test_of_two_edits_at_once_one_is_a_version_and_each_version_is_as_saved(people: People) -> None:
    here, there, _ = people
    artifact_id = create(here, "document", "# A\n\n0\n\n# B\n\n0\n")
    path, chance = f"/artifacts/{artifact_id}/content", random.Random(7)
    saved = {1: here.good("GET", path)["content"]}

    def edit(person: ApiClient, base: int, number: int) -> Any:
        page = chance.randint(1, 2)
        body = {"page": page, "base_version": base, "content": f"# {'AB'[page - 1]}\n\n{number}"}
        return body, person.ask("PUT", path, json=body)

    with ThreadPoolExecutor(2) as pool:
        for number in range(1, 7):
            base = max(saved)
            tries = [
                pool.submit(edit, person, base, 2 * number + which)
                for which, person in enumerate((here, there))
            ]
            answers = [one.result() for one in tries]
            codes = sorted(answer.status_code for _, answer in answers)
            assert codes == [200, 409], [answer.text for _, answer in answers]
            (refused,) = [answer.json() for _, answer in answers if answer.status_code == 409]
            (lost,) = [body for body, answer in answers if answer.status_code == 409]
            (made,) = [body for body, answer in answers if answer.status_code == 200]
            detail = refused["detail"]
            assert (detail["version"], detail["yours"]) == (base + 1, lost["content"])
            now = there.good("GET", path)
            assert (now["version"], made["content"] in now["content"]) == (base + 1, True)
            assert detail["current"] == now["pages"][lost["page"] - 1]["content"]
            saved[base + 1] = now["content"]
            if number % 3 == 0:
                older = chance.choice(sorted(saved)[-4:-1])
                restored = {"version": older}
                there.good("POST", f"/artifacts/{artifact_id}/restore", json=restored)
                saved[base + 2] = saved[older]
                assert here.good("GET", path)["content"] == saved[older]
    kept = sorted(saved)[-4:]
    assert [
        one["version"] for one in there.good("GET", f"/artifacts/{artifact_id}/versions")["items"]
    ] == kept[::-1]
    for version in kept:
        assert here.good("GET", f"{path}?version={version}")["content"] == saved[version]
    here.bad("GET", f"{path}?version={kept[0] - 1}", 404)


def test_sources_count_as_storage_of_their_owner_until_they_are_deleted(people: People) -> None:
    # A server learns within ten minutes what another one has stored.
    here, _, ben = people
    text = "word " * 60_000
    ids = [create(here, "document", f"# {text}{number}") for number in range(3)]
    full = {"type": "document", "name": "n", "content": f"# {text}"}
    assert here.bad("POST", "/artifacts", 413, json=full)["detail"]["kind"] == "quota_exceeded"
    edit = {"page": 1, "base_version": 1, "content": f"# {text}more"}
    assert (
        here.bad("PUT", f"/artifacts/{ids[0]}/content", 413, json=edit)["detail"]["kind"] == "quota_exceeded"
    )
    create(ben, "document", f"# {text}")
    here.good("DELETE", f"/artifacts/{ids[0]}")
    create(here, "document", f"# {text}")


def rewritten(person: ApiClient, model: ScriptedProvider, artifact_id: str) -> str:
    """The ended run of a person that wrote a page of an artifact."""
    person.good("PUT", "/settings", json={"default_provider_id": connect(person, model)})
    body = {"page_index": 1, "instructions": "shorter"}
    started = person.ask("POST", f"/artifacts/{artifact_id}/regenerate", json=body, headers=JSON)
    assert started.status_code == 202, started.text
    run_id = str(started.json()["data"]["id"])
    assert ended(person, run_id)["status"] == "completed"
    return run_id


def test_no_table_has_a_row_of_an_artifact_after_its_deletion(servers: Servers, people: People) -> None:
    here, there, ben = people
    with (
        ScriptedProvider(Script(rules=[Rule(reply=[Text(text="# New"), Finish()])])) as model,
        ApiClient(servers.one, None).sign_in() as admin,
    ):
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
        room = here.good("POST", "/chat-rooms", json={"title": "r", "task": "t"})["id"]
        right = {"username": ben.user["username"], "right": "speak"}
        here.good("POST", f"/chat-rooms/{room}/members", json=right)
        project = here.good("POST", "/projects", json={"name": "p"})["id"]
        talk, kept_talk = (
            here.good("POST", "/conversations", json={"title": "c", "project_id": project})["id"]
            for _ in "ab"
        )
        single, of_talk, kept, of_room = (
            create(here, **subject)
            for subject in ({}, {"conversation_id": talk}, {"conversation_id": kept_talk}, {"room_id": room})
        )
        made = {single, of_talk, kept, of_room}
        runs = {one: rewritten(here, model, one) for one in made - {of_room}}
        runs[of_room] = rewritten(ben, model, of_room)
        for one in made:
            there.ask("GET", f"/artifacts/{one}/pages/1?width=320")
            assert set(servers.holding(one)) >= {"artifacts", "artifact_versions", "artifact_parts", "runs"}

        there.good("DELETE", f"/artifacts/{single}")
        assert servers.holding(single, runs[single]) == {}
        there.good("DELETE", f"/conversations/{talk}?artifacts=delete")
        assert servers.holding(of_talk, runs[of_talk]) == {}
        here.good("DELETE", f"/conversations/{kept_talk}")
        here.good("DELETE", f"/projects/{project}")
        here.good("DELETE", f"/chat-rooms/{room}")
        for one in (kept, of_room):
            view = here.good("GET", f"/artifacts/{one}")
            assert (view["subject_kind"], view["head"]) == (None, 2)
            ben.bad("GET", f"/artifacts/{one}", 404)

        admin.good("DELETE", f"/auth/users/{here.user['id']}")
        assert servers.holding(kept, runs[kept]) == {}
        # The run of somebody else is theirs, as long as they have an account.
        assert set(servers.holding(of_room)) == {"runs"}
        admin.good("DELETE", f"/auth/users/{ben.user['id']}")
        assert servers.holding(of_room, runs[of_room]) == {}
    left = table_of(ArtifactRow)
    assert servers.rows(select(left.c.id).where(left.c.id.in_(made))) == []
