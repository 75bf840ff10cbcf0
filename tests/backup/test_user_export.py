"""The export of one user's data and its import into another server: complete, and without data of others."""

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.orm import Session
from store.test_search import find

from backup.sample_data import (
    KEY,
    data_paths_of,
    files_of,
    fill,
    initialise,
    rows_of,
    store_of,
)
from backup.test_bad_archives import HOSTILE, members_of, pack_archive, tar_of
from luxx.domain.accounts.models import User, UserSettings
from luxx.domain.agents.document import store_shipped_agents
from luxx.domain.agents.models import AgentRow
from luxx.domain.backup import user_import as person_import
from luxx.domain.backup.backup import DataPaths
from luxx.domain.backup.user_export import export_user
from luxx.domain.backup.user_import import UserImportResult, import_user
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.files import storage as measuring
from luxx.errors import LuxxError
from luxx.features.rooms.seats import copy_agent_to_seats
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import FilesConfig
from luxx.providers.models import ProviderRow
from luxx.tools.compositions.service import new_row
from luxx.wire.tool import Composition, Member


def lists(name: str, description: str) -> Composition:
    members = [Member(id="list", tool="file_list")]
    return Composition(name=name, description=description, members=members)


LOST_PROVIDERS = [
    "the agent Writer ✍ lost its provider p, which does not exist here",
    "the agent Writer ✍ brought permission rules: deny shell_execute(git *)",
]
LISTS, BENS = lists("lists", "Lists."), lists("bens", "of ben alone")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[DataPaths]:
    """A server with ann, who has data of every kind, and ben with his own data."""
    data_paths = data_paths_of(tmp_path / "here")
    initialise(data_paths)
    fill(data_paths)
    with store_of(data_paths) as store:
        store.write_now(add_ben)
        store.write_now(lambda session: apply_settings(session, temperature=0.7, system_prompt="be brief"))
        store.write_now(lambda session: session.add(new_row(1, 1, LISTS, utc_now())))
        store.write_now(lambda session: session.add(new_row(1, 2, BENS, utc_now())))
    yield data_paths
    data_paths.close()


@pytest.fixture
def there(there: DataPaths) -> DataPaths:
    """With ben besides ann, who has settings of her own."""
    with store_of(there) as store:
        store.write_now(add_ben)
        store.write_now(lambda session: apply_settings(session, temperature=None, system_prompt="mine"))
    return there


def add_ben(session: Session) -> None:
    ann = {column.key: getattr(session.get(User, 1), column.key) for column in User.__table__.columns}
    session.execute(insert(User).values(ann | {"id": 2, "username": "Ben", "username_key": "ben"}))
    now = utc_now()
    session.execute(insert(ConversationRow).values(
        id="bens", user_id=2, title="of ben alone", created_at=now, updated_at=now
    ))  # fmt: skip


def apply_settings(session: Session, **given: Any) -> None:
    now = utc_now()
    session.execute(insert(UserSettings).values(user_id=1, created_at=now, updated_at=now, **given))
    session.execute(insert(UserSettings).values(user_id=2, created_at=now, updated_at=now))


def import_archive(
    data_paths: DataPaths, path: Path, username: str | None = None, **config: float
) -> UserImportResult:
    with store_of(data_paths) as store:
        return import_user(data_paths, store, path, username, FilesConfig(**config))


def content_of(path: Path) -> Any:
    """The content of a user's file, without the ids and times that differ in each file."""
    members = members_of(path.read_bytes())
    person = json.loads(members["person.json"])
    conversations = json.loads(members["conversations.json"])
    for document in conversations:
        document.pop("exported_at")
        positions = {message["id"]: at for at, message in enumerate(document["messages"])}
        document["conversation"].pop("id")
        for message in document["messages"]:
            message["id"], message["parent_id"] = (
                positions[message["id"]],
                positions.get(message["parent_id"]),
            )
        document["conversation"]["selected_leaf_id"] = None
        document["messages"].sort(key=itemgetter("text"))
    for project in person["projects"]:
        project["conversations"] = len(project["conversations"])
    return person, [sorted(map(repr, document["conversation"].items())) for document in conversations]


def test_all_data_of_a_user_is_imported_into_another_server(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    exported = export_user(here, "ANN", tmp_path / "ann.zip")
    imported = import_archive(there, tmp_path / "ann.zip")
    assert (imported.username, imported.report.conversations, imported.report.messages) == ("ann", 1, 3)
    assert (imported.projects, imported.agents, imported.files) == (1, 1, 4)
    assert imported.notes == [*exported.left_out, *LOST_PROVIDERS, "1 settings kept their present value"]
    assert "empty" in files_of(here)
    assert files_of(there) == files_of(here)
    rows = rows_of(there)
    (conversation,) = [row for row in rows["conversations"] if row[1] == 1]
    (project,) = rows["projects"]
    assert conversation[3] == project[0]
    (agent,) = agents_of(there)
    assert agent_of_conversations(there) == [agent["id"]]
    settings = select(UserSettings.temperature, UserSettings.system_prompt).where(UserSettings.user_id == 1)
    with store_of(there) as store:
        assert store.read_now(lambda session: session.execute(settings).all()) == [(0.7, "mine")]
        assert len(find(store, "findable").hits) == 1
    export_user(there, "ann", tmp_path / "again.zip")
    first, again = content_of(tmp_path / "ann.zip"), content_of(tmp_path / "again.zip")
    assert first[1] == again[1]
    assert first[0]["projects"] == again[0]["projects"]
    assert first[0]["compositions"] == again[0]["compositions"]
    assert [each["name"] for each in again[0]["compositions"]] == ["lists"]
    (before,), (after,) = first[0]["agents"], again[0]["agents"]
    assert before["document"].pop("provider") == "p"
    assert before["document"].pop("fallbacks") == [{"provider": "p"}]
    assert before["document"].pop("model") == "m"
    assert before["document"] == after["document"]
    assert after["document"]["rules"] == [{"tool": "shell_execute", "pattern": "git *", "action": "deny"}]


def test_agents_find_their_providers_by_name_and_are_not_shared(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    """Those that come with Luxx are found by their names; a conversation keeps either."""
    for number, data_paths in enumerate((here, there)):
        with store_of(data_paths) as store:
            store.write_now(lambda session, name=f"{number}": add_conversation_with("code", session, name))
    now = utc_now()
    with there.engine.begin() as connection:
        provider = {"id": 11, "user_id": 1, "tenant_id": 1, "name": "p", "provider_type": "openai"}
        connection.execute(insert(ProviderRow).values(**provider, created_at=now, updated_at=now))
    export_user(here, "ann", tmp_path / "ann.zip")
    imported = import_archive(there, tmp_path / "ann.zip")
    assert not [note for note in imported.notes if "provider" in note]
    agents = {agent["id"]: agent for agent in agents_of(there)}
    (agent,) = [agent for agent in agents.values() if agent["shipped_name"] is None]
    assert (agent["provider_id"], agent["model"], agent["is_shared"]) == (11, "m", False)
    assert json.loads(agent["fallbacks"]) == [{"provider_id": 11, "model": None}]
    assert (agent["user_id"], agent["tenant_id"]) == (1, 1)
    used = [agents[agent_id]["name"] for agent_id in agent_of_conversations(there)]
    assert used == ["Code", "Code", "Writer ✍"]
    rows = rows_of(there)
    imported_rules = [row[4] for row in rows["permission_rules"] if row[1] is not None]
    assert imported_rules == [agent["id"]], "those of shipped agents belong to no tenant"


def test_an_export_without_agents_can_be_imported(here: DataPaths, there: DataPaths, tmp_path: Path) -> None:
    """As an older version has written it."""
    path = tmp_path / "ann.zip"
    export_user(here, "ann", path)
    good = path.read_bytes()
    person = json.loads(members_of(good)["person.json"])
    assert person.pop("agents")
    assert person.pop("shipped_agents") == {}
    path.write_bytes(with_member(good, "person.json", json.dumps(person).encode()))
    imported = import_archive(there, path)
    assert (imported.agents, agents_of(there), agent_of_conversations(there)) == (0, [], [])


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("name", "two\nlines", "cannot be read"),
        ("temperature", 3, "cannot be read"),
        ("owner", "ben", "cannot be read"),
        ("version", 2, "cannot be read"),
        ("rules", [{"tool": "a", "pattern": "*a" * 50, "action": "deny"}], "wildcards"),
    ],
)
def test_a_wrong_agent_leaves_nothing(
    here: DataPaths, there: DataPaths, tmp_path: Path, name: str, value: Any, match: str
) -> None:
    path = tmp_path / "ann.zip"
    export_user(here, "ann", path)
    good = path.read_bytes()
    person = json.loads(members_of(good)["person.json"])
    person["agents"][0]["document"][name] = value
    path.write_bytes(with_member(good, "person.json", json.dumps(person).encode()))
    check_import_is_refused(there, path, match)


def add_conversation_with(shipped_name: str, session: Session, title: str) -> None:
    """The agents that come with Luxx, and a conversation of ann with one of them."""
    store_shipped_agents(session, copy_agent_to_seats)
    agent_id = session.scalars(select(AgentRow.id).where(AgentRow.shipped_name == shipped_name)).one()
    values = {"id": title, "user_id": 1, "title": title, "agent_id": agent_id}
    session.execute(insert(ConversationRow).values(**values, created_at=utc_now(), updated_at=utc_now()))


def agents_of(data_paths: DataPaths) -> list[dict[str, Any]]:
    """All agents, oldest first."""
    with data_paths.engine.connect() as connection:
        rows = connection.execute(select(AgentRow.__table__).order_by(AgentRow.id)).mappings()
        return [dict(row) for row in rows]


def agent_of_conversations(data_paths: DataPaths) -> list[int | None]:
    """The agents of ann's conversations, by name."""
    with data_paths.engine.connect() as connection:
        query = select(ConversationRow.agent_id).join(AgentRow).where(ConversationRow.user_id == 1)
        return list(connection.scalars(query.order_by(AgentRow.name)))


def test_an_export_contains_no_secrets_and_no_data_of_others(here: DataPaths, tmp_path: Path) -> None:
    export_user(here, "ann", tmp_path / "ann.zip")
    assert (tmp_path / "ann.zip").stat().st_mode & 0o777 == 0o600
    members = members_of((tmp_path / "ann.zip").read_bytes())
    whole = b"".join(members.values())
    for secret in (b"hash of ann", KEY.encode(), here.secret().encode(), b"of ben alone"):
        assert secret not in whole, secret
    # Sealed keys begin like this; random bytes of the workspace may be equal by chance.
    assert b"v1." not in b"".join(
        file_content for name, file_content in members.items() if name != "files.tar"
    )
    assert len(members["usage.jsonl"].splitlines()) == 1200


def test_a_second_import_is_added_to_the_first(here: DataPaths, there: DataPaths, tmp_path: Path) -> None:
    export_user(here, "ann", tmp_path / "ann.zip")
    import_archive(there, tmp_path / "ann.zip")
    before = files_of(there)
    imported = import_archive(there, tmp_path / "ann.zip")
    assert "4 files got another name, because theirs was taken" in imported.notes
    left_out = "the composition lists was left out: the name is taken, or there are too many"
    assert left_out in imported.notes
    assert len(rows_of(there)["tool_compositions"]) == 1
    assert {name: file_content for name, file_content in files_of(there).items() if name in before} == before
    assert len([row for row in rows_of(there)["conversations"] if row[1] == 1]) == 2
    other = import_archive(there, tmp_path / "ann.zip", "bEN")
    assert (other.username, other.files) == ("Ben", 4)


def all_data(data_paths: DataPaths) -> Any:
    return rows_of(data_paths), files_of(data_paths)


def check_import_is_refused(
    data_paths: DataPaths, path: Path, match: str, username: str | None = None, **config: float
) -> None:
    before = all_data(data_paths)
    with pytest.raises(LuxxError, match=match):
        import_archive(data_paths, path, username, **config)
    assert all_data(data_paths) == before


def test_an_import_that_cannot_be_complete_leaves_nothing(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    path = tmp_path / "ann.zip"
    export_user(here, "ann", path)
    good = path.read_bytes()
    check_import_is_refused(there, path, "no user 'nobody'", "nobody")
    check_import_is_refused(there, path, r"files\.quota_mb", quota_mb=0.000001)
    check_import_is_refused(there, path, r"files\.quota_mb", quota_mb=1)
    check_import_is_refused(
        there, path, r"conversations\.json unpacks to", quota_mb=0.000001, max_upload_mb=0.000001
    )
    path.write_bytes(good[:-1000])
    check_import_is_refused(there, path, "not a complete ZIP")
    for member, content in (
        ("conversations.json", b'[{"format":"luxx.conversation","version":1'),
        ("conversations.json", b"nothing"),
        ("person.json", b"[]"),
        *(("files.tar", make()) for make in HOSTILE.values()),
    ):
        path.write_bytes(with_member(good, member, content))
        if member == "files.tar" and content == HOSTILE["twice"]():
            continue  # The second one with the same name gets a number.
        check_import_is_refused(there, path, ".")
    manifest = json.loads(members_of(good)["manifest.json"]) | {"version": 2, "luxx": "9.1"}
    path.write_bytes(pack_archive(members_of(good) | {"manifest.json": json.dumps(manifest).encode()}))
    check_import_is_refused(there, path, "newer Luxx")
    for changed_fields, match in (
        ({"file_count": 200_001}, "more than 200,000 files"),
        ({"files": manifest["files"] | {"size": 2**31}}, r"files\.tar unpacks to"),
        ({"conversations": manifest["conversations"] | {"size": 2**40}}, r"conversations\.json unpacks to"),
    ):
        lying = json.loads(members_of(good)["manifest.json"]) | changed_fields
        path.write_bytes(pack_archive(members_of(good) | {"manifest.json": json.dumps(lying).encode()}))
        check_import_is_refused(there, path, match)
    lying = json.loads(members_of(good)["manifest.json"])
    lying["conversations"]["size"] = 2**40
    path.write_bytes(pack_archive(members_of(good) | {"manifest.json": json.dumps(lying).encode()}))
    check_import_is_refused(there, path, "are free", quota_mb=2**30)
    assert not any(name.startswith("tmp") for name in os.listdir(there.data_dir))


def test_an_import_with_too_many_files_leaves_nothing(
    here: DataPaths, there: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ann.zip"
    export_user(here, "ann", path)
    good = path.read_bytes()
    for module, match in ((person_import, "more than 5 files"), (measuring, "cannot be measured")):
        monkeypatch.setattr(module, "MAX_ENTRIES", 5)
        folders = tar_of(*((f"folder{place}", {"type": tarfile.DIRTYPE}) for place in range(6)))
        path.write_bytes(with_member(good, "files.tar", folders))
        check_import_is_refused(there, path, match)
        monkeypatch.undo()


def test_all_settings_can_be_exported_and_imported(here: DataPaths, there: DataPaths, tmp_path: Path) -> None:
    for data_paths, tokens in ((here, 2**31 - 1), (there, None)):
        with data_paths.engine.begin() as connection:
            connection.execute(text("UPDATE user_settings SET max_tokens = :tokens"), {"tokens": tokens})
    export_user(here, "ann", tmp_path / "ann.zip")
    import_archive(there, tmp_path / "ann.zip")
    with there.engine.connect() as connection:
        tokens = connection.scalar(text("SELECT max_tokens FROM user_settings WHERE user_id = 1"))
    assert tokens == 2**31 - 1


def with_member(good: bytes, name: str, content: bytes) -> bytes:
    members = members_of(good) | {name: content}
    manifest = json.loads(members["manifest.json"])
    for each in (manifest["person"], manifest["conversations"], manifest["files"]):
        if each["name"] == name:
            each |= {"size": len(content), "sha256": sha256(content).hexdigest()}
    return pack_archive(members | {"manifest.json": json.dumps(manifest).encode()})


def test_an_import_does_not_write_through_a_link_in_the_workspace(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    """A tool of the user has created the link; the operator imports into that workspace."""
    export_user(here, "ann", tmp_path / "ann.zip")
    (tmp_path / "outside").mkdir()
    (there.workspaces.prepare(1) / "deep").symlink_to(tmp_path / "outside")
    check_import_is_refused(there, tmp_path / "ann.zip", ".")
    assert list((tmp_path / "outside").iterdir()) == []


def test_an_import_during_the_start_of_a_server_fails_completely(
    here: DataPaths, there: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start deletes hidden rows, because a crash leaves such rows."""
    export_user(here, "ann", tmp_path / "ann.zip")

    def start(user_id: int) -> Path:
        with there.engine.begin() as connection:
            connection.execute(text("DELETE FROM conversations WHERE import_id IS NOT NULL"))
        return there.workspaces.path_of(user_id)

    monkeypatch.setattr(there.workspaces, "prepare", start)
    there.workspaces.path_of(1).mkdir(parents=True, exist_ok=True)
    check_import_is_refused(there, tmp_path / "ann.zip", "server was started")


def test_the_conversations_of_a_users_file_can_be_imported_by_the_user(
    here: DataPaths, tmp_path: Path
) -> None:
    """POST /conversations/import accepts the file."""
    export_user(here, "ann", tmp_path / "ann.zip")
    with zipfile.ZipFile(io.BytesIO((tmp_path / "ann.zip").read_bytes())) as archive:
        (document,) = json.loads(archive.read("conversations.json"))
    assert document["format"] == "luxx.conversation"
    with store_of(here) as store:
        count = (
            select(func.count())
            .select_from(MessageRow)
            .where(MessageRow.user_id == 1, MessageRow.conversation_id.is_not(None))
        )
        assert len(document["messages"]) == store.read_now(lambda session: session.scalar(count))
