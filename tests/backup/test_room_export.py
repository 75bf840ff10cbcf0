"""Rooms with their messages in the export of one user's data and in its import into another server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session
from store.test_search import find

from backup.sample_data import NOON, data_paths_of, fill, initialise, store_of
from backup.test_bad_archives import members_of
from backup.test_user_export import with_member
from luxx.app.cli.backup_commands import FEATURES
from luxx.domain.accounts.authentication import caller_without_sign_in
from luxx.domain.accounts.models import User
from luxx.domain.backup.backup import DataPaths
from luxx.domain.backup.user_export import export_user
from luxx.domain.backup.user_import import UserImportResult, import_user
from luxx.domain.conversations.models import MessageRow
from luxx.errors import LuxxError
from luxx.features.rooms import user_export
from luxx.features.rooms.messages import NewRoomMessage, add_message
from luxx.features.rooms.models import ChatRoomRow, RoomAgentRow
from luxx.features.rooms.user_export import DELETED, read_rooms
from luxx.infra.clock import new_id
from luxx.infra.config.schema import FilesConfig
from luxx.providers.models import ProviderRow
from luxx.wire.message import UserContent


@pytest.fixture
def here(tmp_path: Path) -> Iterator[DataPaths]:
    data_paths = data_paths_of(tmp_path / "here")
    initialise(data_paths)
    fill(data_paths)
    yield data_paths
    data_paths.close()


def import_archive(data_paths: DataPaths, path: Path) -> UserImportResult:
    with store_of(data_paths) as store:
        return import_user(data_paths, store, path, None, FilesConfig(), FEATURES)


def rooms_of(data_paths: DataPaths) -> Any:
    """What an export of ann's rooms has."""

    def work(session: Session) -> Any:
        caller = caller_without_sign_in(session.get_one(User, 1))
        return msgspec.to_builtins(read_rooms(session, caller, []))

    with store_of(data_paths) as store:
        return store.read_now(work)


def count(data_paths: DataPaths, row: Any) -> int:
    with store_of(data_paths) as store:
        return store.read_now(lambda session: session.scalar(select(func.count()).select_from(row)) or 0)


def changed(path: Path, change: Any) -> Path:
    """The archive with a change to its first room."""
    good = path.read_bytes()
    person = json.loads(members_of(good)["person.json"])
    change(person["features"]["rooms"][0])
    target = path.with_name("changed.zip")
    target.write_bytes(with_member(good, "person.json", json.dumps(person).encode()))
    return target


def test_rooms_are_imported_with_their_seats_and_messages(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    def add_provider(session: Session) -> None:
        session.execute(insert(ProviderRow).values(
            user_id=1, tenant_id=1, name="p", provider_type="openai", api_key="", created_at=NOON,
            updated_at=NOON,
        ))  # fmt: skip

    with store_of(there) as store:
        store.write_now(add_provider)
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    result = import_archive(there, tmp_path / "ann.zip")
    assert [note for note in result.notes if "room" in note] == []
    (room,) = rooms_of(here)
    assert room["document"]["policy"] == {"name": "selector", "provider": "p", "model": "m"}
    assert [seat["name"] for seat in room["document"]["agents"]] == ["Crític", "Writer ✍"]
    assert room["document"]["stop"]["any"][1] == {"phrase": "done", "seat": "Crític"}
    asked, said = room["messages"]
    assert (asked["text"], asked["sender_name"]) == ("Begin ✍.", "ann")
    assert (said["seat"], said["status"], said["replay"]) == (0, "partial", [{"signature": "s"}])
    assert rooms_of(there) == [room]
    with store_of(there) as store:
        assert [(hit.kind, hit.room_title) for hit in find(store, "discuss 会议").hits] == [
            ("room", "Talk 会议")
        ]
        assert [hit.message_id is None for hit in find(store, "begin").hits] == [False]


def test_the_images_of_steps_that_an_older_version_exported_are_their_files(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    names = {"name": "a.png", "path": "images/a.png", "media_type": "image/png", "sha256": "0" * 64}
    image = {"file_id": "1", "size": 5, "width": 1, "height": 1, **names}
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    path = changed(tmp_path / "ann.zip", lambda room: room["messages"][1]["steps"][0].update(images=[image]))
    import_archive(there, path)
    (room,) = rooms_of(there)
    (step,) = room["messages"][1]["steps"]
    assert (step["files"], "images" in step) == ([image], False)


def test_a_provider_that_does_not_exist_there_is_left_out_with_a_note(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    result = import_archive(there, tmp_path / "ann.zip")
    notes = [note for note in result.notes if "room" in note]
    assert notes == ["the room Talk 会议 lost its provider p, which does not exist here"]
    (room,) = rooms_of(there)
    assert room["document"]["policy"] == {"name": "selector"}
    assert "model" not in room["document"]["agents"][0]
    assert len(room["messages"]) == 2


def test_messages_beyond_the_limit_of_an_export_are_left_out_with_a_note(
    here: DataPaths, there: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_export, "MAX_MESSAGES_MIB", 100 / 2**20)
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    result = import_archive(there, tmp_path / "ann.zip")
    assert "the room Talk 会议: 2 messages did not fit into the export" in result.notes
    assert rooms_of(there)[0]["messages"] == []


def test_replies_name_the_same_messages_after_an_import(
    here: DataPaths, there: DataPaths, tmp_path: Path
) -> None:
    def add_replies(session: Session) -> None:
        room = session.scalars(select(ChatRoomRow)).one()
        asked = session.scalar(select(func.min(MessageRow.id)).where(MessageRow.room_id == room.id))
        for answered in (asked, new_id()):
            reply = NewRoomMessage(content=UserContent(text="And?"), sender_name="ann", reply_to=answered)
            add_message(session.connection(), room.id, room.user_id, reply)

    with store_of(here) as store:
        store.write_now(add_replies)
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    import_archive(there, tmp_path / "ann.zip")
    (room,) = rooms_of(there)
    assert room["messages"] == rooms_of(here)[0]["messages"]
    assert [one.get("reply_to") for one in room["messages"]] == [None, None, 0, DELETED]
    for wrong, reason in ((2, "not before it"), (9, "not before it"), (-2, "cannot be read")):
        broken = changed(
            tmp_path / "ann.zip", lambda room, wrong=wrong: room["messages"][2].update(reply_to=wrong)
        )
        with pytest.raises(LuxxError, match=reason):
            import_archive(there, broken)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda room: room.update(document={}), "cannot be read"),
        (lambda room: room["document"].update(max_rounds=0), "cannot be read"),
        (lambda room: room["messages"][0].update(role="system"), "cannot be read"),
        (lambda room: room["messages"][0].update(seat=-1), "cannot be read"),
        (lambda room: room["document"]["agents"][1].update(name="CRÍTIC"), "name of its own"),
        (lambda room: room["document"]["agents"][1].pop("name"), "name of its own"),
        (lambda room: room["document"]["stop"]["any"][1].update(seat="Nobody"), "no seat 0"),
        (lambda room: room["document"].update(stop={}), "exactly one"),
    ],
    ids=["no file", "rounds", "role", "seat", "same names", "no name", "unknown seat", "empty stop"],
)
def test_wrong_rooms_leave_nothing(
    here: DataPaths, there: DataPaths, tmp_path: Path, change: Any, reason: str
) -> None:
    export_user(here, "ann", tmp_path / "ann.zip", FEATURES)
    path = changed(tmp_path / "ann.zip", change)
    with pytest.raises(LuxxError, match=reason):
        import_archive(there, path)
    assert (count(there, ChatRoomRow), count(there, RoomAgentRow)) == (0, 0)
