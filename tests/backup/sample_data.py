"""Sample data of a server: a folder and a database with rows that are hard to back up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import insert, select, text, update

from luxx.domain.accounts.authentication import caller_without_sign_in
from luxx.domain.accounts.models import User
from luxx.domain.agents.models import AgentRow
from luxx.domain.backup.backup import DataPaths
from luxx.domain.conversations.images import MessageBlobRow
from luxx.domain.conversations.models import ConversationRow, MessageRow, ProjectRow
from luxx.domain.conversations.search_index import index_message, index_title
from luxx.domain.files.service import FileRow
from luxx.domain.skills.changes import set_document
from luxx.domain.skills.document import read_document
from luxx.domain.skills.files import digest_of, store_files
from luxx.domain.skills.models import SkillRow
from luxx.domain.usage.ledger import UsageRow
from luxx.features.artifacts.citations import CitedSource
from luxx.features.artifacts.rows import NewVersion, add_artifact, add_version
from luxx.features.artifacts.source import SourcePage
from luxx.features.artifacts.views import ArtifactSettings, AuthorKind, VersionAuthorRow
from luxx.features.knowledge.chunks import chunks_of
from luxx.features.knowledge.indexing import (
    ChunkChanges,
    end_document,
    next_pending,
    words_of_chunks,
    write_changes,
)
from luxx.features.knowledge.rows import NewDocument, store_document
from luxx.features.knowledge.service import BaseColumns, add_base
from luxx.features.memory.facts import Author, FactWriter
from luxx.features.memory.scopes import USER_SCOPE, stored_scope, visible_scopes
from luxx.features.memory.views import FactChanges, NewFact, facts
from luxx.features.prompts import PROMPTS, NewPrompt
from luxx.features.rooms.messages import NewRoomMessage, add_message
from luxx.features.rooms.models import ChatRoomRow, NewSeat
from luxx.features.rooms.seats import seat_row
from luxx.features.rooms.service import index_room
from luxx.features.shares.models import ShareRow
from luxx.features.tasks.changes import add_task, index_task
from luxx.features.tasks.document import TaskDocument, TaskStepDocument
from luxx.features.tasks.models import NewTask, NewTaskStep, TaskRow, TaskStepRow, TaskVersionRow
from luxx.features.tasks.templates import TASK_TEMPLATES, NewTaskTemplate
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import AppConfig, Config, DatabaseConfig, WorkspaceConfig
from luxx.infra.documents.parts import Part
from luxx.infra.secrets import Vault, find_secret
from luxx.infra.store.engine import Store, open_engine
from luxx.infra.store.tables import Base
from luxx.providers.models import ProviderRow
from luxx.providers.queries import key_identity
from luxx.runs.models import RunEventRow, RunRow, SubjectMemberRow
from luxx.tools.permissions.service import Owner, replace_list
from luxx.wire.artifacts import ArtifactProblem, ArtifactType
from luxx.wire.memory import EpisodeStatus
from luxx.wire.message import AssistantContent, UserContent
from luxx.wire.tool import PermissionRule, RuleAction
from luxx.wire.turn import Step, StepType, Usage

KEY = "sk-a-key-to-be-opened-again"
SECRET = "a configured secret of the other server"
NOON = datetime(2026, 3, 4, 12, 30, 15, 123456, UTC)


def config_of(folder: Path, url: str = "", *, secret: str = "") -> Config:
    database = DatabaseConfig(
        type="postgresql" if url.startswith("postgres") else "sqlite", url=url or "sqlite:///luxx.db"
    )
    return Config(
        app=AppConfig(secret_key=secret),
        database=database,
        workspace=WorkspaceConfig(root=str(folder / "workspaces")),
        data_dir=str(folder / "data"),
    )


def data_paths_of(folder: Path, url: str = "", *, secret: str = "") -> DataPaths:
    """The data paths of a server that was never started; on PostgreSQL its secret is configured."""
    folder.mkdir(exist_ok=True)
    if url.startswith("sqlite"):
        url = ""
    return DataPaths(config_of(folder, url, secret=secret or (SECRET if url else "")))


@contextmanager
def store_of(data_paths: DataPaths) -> Iterator[Store]:
    store = Store(open_engine(data_paths.url))
    try:
        yield store
    finally:
        store.close()


def initialise(data_paths: DataPaths) -> None:
    """Migrates and creates a secret, as a first start does."""
    engine = open_engine(data_paths.url)
    make_ready(engine)
    engine.dispose()
    find_secret(data_paths.configured_secret, data_paths.data_dir, is_shared=not data_paths.is_sqlite)


def fill(data_paths: DataPaths) -> None:
    """Adds rows of every awkward kind, and files."""
    with store_of(data_paths) as store:
        store.write_now(lambda session: _fill(session, data_paths))
    here = data_paths.workspaces.prepare(1)
    (here / "deep" / "er").mkdir(parents=True)
    (here / "empty").mkdir()
    (here / "deep" / "er" / "notes ä.txt").write_text("notes")
    (here / "run.sh").write_text("#!/bin/sh\n")
    (here / "run.sh").chmod(0o700)
    (here / ("n" * 255)).write_bytes(os.urandom(3_000_000))
    (here / os.fsdecode(b"not \xff text")).write_bytes(b"bytes")
    os.utime(here / "run.sh", ns=(1_700_000_000_123_456_789,) * 2)
    (here / "link").symlink_to("/etc/hostname")
    os.mkfifo(here / "pipe")


def _remember(session: Any) -> None:
    """A fact with entities, and an earlier wording of it."""
    connection, writer, author = session.connection(), FactWriter(), Author(user_id=1)
    scopes = visible_scopes(connection, caller_without_sign_in(session.get(User, 1)))
    scope = stored_scope(connection, scopes, USER_SCOPE)
    new = NewFact(text="Zoë likes 机器学习.", subject="Zoë", object="机器学习")
    fact_id = writer.add(connection, scope, new, author, NOON)
    row = connection.execute(select(*facts.c).where(facts.c.id == fact_id)).one()
    changes = FactChanges(text="Zoë loves 机器学习.")
    writer.change(connection, scopes.with_scope(scope), row, changes, author, utc_now())


def _know(session: Any) -> None:
    """A knowledge base with an indexed document."""
    caller = caller_without_sign_in(session.get(User, 1))
    base = add_base(session, caller, BaseColumns(name="Know 机器", description=""))
    data = b"# Gate\n\nThe gate has code 4711."
    new = NewDocument(name="gate.md", size=len(data), hash="0" * 64, pieces=[data])
    connection = session.connection()
    store_document(connection, base, 1, new, quota_mb=1)
    document = next_pending(connection, base.id, 1)
    assert document is not None
    part = Part(text="The gate has code 4711.", headings=("Gate",))
    changes = ChunkChanges(new=list(chunks_of([part])))
    words = words_of_chunks(connection.dialect.name, document.scope_id, changes.new)
    write_changes(connection, document, changes, words)
    end_document(connection, document, EpisodeStatus.SYNCED, read=None, reason=None, count=1)


SKILL_FILES = {
    "SKILL.md": "---\r\nname: 数据分析\ndescription: Reads.\n---\n\nRead ☃.\r\n".encode(),
    "scripts/run ä.py": b"\xff\xfe\0print()\n",
}


def _teach(session: Any, project_id: str) -> None:
    """A reviewed skill of a project, with a file that is no text."""
    digest = digest_of(SKILL_FILES)
    row = SkillRow(
        id=new_id(), tenant_id=1, project_id=project_id, user_id=1, scope="project", enabled=False,
        origin="uploaded", digest=digest, reviewed_digest=digest, reviewed_by=1, reviewed_at=NOON,
        warning="the folder has another name", created_at=NOON, updated_at=NOON,
    )  # fmt: skip
    set_document(row, read_document(SKILL_FILES["SKILL.md"]))
    session.add(row)
    session.flush()
    store_files(session.connection(), 1, digest, SKILL_FILES)


def _make_artifacts(session: Any, conversation_id: str, run_id: str) -> None:
    """A report of a run with two versions that share a page, and a program that belongs to nothing."""
    connection = session.connection()
    report = {"id": new_id(), "tenant_id": 1, "user_id": 1, "type": "report", "name": "Lage 概况",
              "conversation_id": conversation_id}  # fmt: skip
    source = CitedSource(number=3, address="https://example.org/ä", title="Read ✍")
    settings = ArtifactSettings(theme="forest", language="de", sources=[source])
    writer = VersionAuthorRow(kind=AuthorKind.MODEL, name="m", run_id=run_id, call_id="c")
    pages = [SourcePage("# Eins\n\nText [S3]."), SourcePage("# Zwei ✍\n\n机器学习")]
    new = NewVersion(base=0, pages=pages, settings=settings, author=writer, is_tainted=True)
    add_artifact(connection, report, new)
    problem = ArtifactProblem(page=2, kind="missing_glyphs", text="A character has no glyph: ✍.")
    person = VersionAuthorRow(kind=AuthorKind.PERSON, name="ann", user_id=1)
    changed = NewVersion(
        base=1, pages=[pages[0], SourcePage("# Zwei\n\nEnde.")], settings=settings, author=person,
        problems=[problem], note="by hand",
    )  # fmt: skip
    add_version(connection, str(report["id"]), ArtifactType.REPORT, changed, most=5)
    program = {"id": new_id(), "tenant_id": 1, "user_id": 1, "type": "code", "name": "tool"}
    files = [SourcePage("print(1)\n", "src/ä.py"), SourcePage("", "src/empty.txt")]
    first = NewVersion(base=0, pages=files, settings=ArtifactSettings(), author=person)
    add_artifact(connection, program, first)


def _fill(session: Any, data_paths: DataPaths) -> None:
    add_user(session)
    now = utc_now()
    session.execute(text("UPDATE users SET password_hash = 'hash of ann'"))
    values = {name: getattr(session.get(User, 1), name) for name in User.__table__.columns.keys()}  # noqa: SIM118
    session.execute(insert(User).values(values | {"id": 41, "username": "gone", "username_key": "gone"}))
    session.execute(text("DELETE FROM users WHERE id = 41"))
    if not data_paths.is_sqlite:
        # The sequence does not know ids that were inserted explicitly.
        session.execute(text("SELECT setval(pg_get_serial_sequence('users', 'id'), 41)"))
    session.execute(insert(ProviderRow).values(
        id=3, user_id=1, tenant_id=1, name="p", provider_type="openai", created_at=now, updated_at=now,
        api_key=Vault(data_paths.secret()).seal(KEY, identity=key_identity(3)),
    ))  # fmt: skip
    session.execute(insert(AgentRow).values(
        id=7, user_id=1, tenant_id=1, name="Writer ✍", role="writes", provider_id=3, model="m",
        system_prompt="Write plainly.\n\n\tOr not.", color="#112233", tools='["file_read"]', skills="[]",
        fallbacks='[{"provider_id":3,"model":null}]', temperature=0.3, is_shared=True,
        created_at=NOON, updated_at=now,
    ))  # fmt: skip
    rule = PermissionRule(tool="shell_execute", pattern="git *", action=RuleAction.DENY)
    replace_list(session.connection(), Owner(tenant_id=1, user_id=1, agent_id=7), [rule])
    session.execute(text("UPDATE tenants SET default_agent_id = 7"))
    project = {"id": new_id(), "user_id": 1, "name": "a project", "created_at": NOON, "updated_at": now}
    session.execute(insert(ProjectRow).values(project))
    _teach(session, project["id"])
    _remember(session)
    _know(session)
    conversation_id, run_id = new_id(), new_id()
    session.execute(insert(ConversationRow).values(
        id=conversation_id, user_id=1, project_id=project["id"], title="Ünïcode 机器学习", temperature=0.1,
        thinking_enabled=None, agent_id=7, tags='["a"]', run_id=run_id, created_at=NOON, updated_at=now,
    ))  # fmt: skip
    first, second, third = (new_id() for _ in range(3))
    # The clock was set back: an answer has a lower id than its question.
    for id_, parent, role, said in (
        (third, None, "user", "findable question"),
        (first, third, "user", "kept ☃ 学习"),
        (second, first, "user", "last"),
    ):
        row = {
            "id": id_, "user_id": 1, "conversation_id": conversation_id, "parent_id": parent, "role": role,
            "content": f'{{"text":"{said}"}}', "created_at": NOON,
        }  # fmt: skip
        session.execute(insert(MessageRow).values(row))
        index_message(session.connection(), row)
    index_title(session.connection(), user_id=1, conversation_id=conversation_id, title="Ünïcode 机器学习")
    image = {"id": new_id(), "message_id": third, "media_type": "image/png", "data": bytes(range(256)) * 5000}
    session.execute(insert(MessageBlobRow).values(image))
    session.execute(insert(RunRow).values(
        id=run_id, user_id=1, tenant_id=1, kind="chat", subject_id=conversation_id, status="running",
        request="{}", owner="a process", fence=2**40, cost=0.1 + 0.2,
        created_at=now,
    ))  # fmt: skip
    session.execute(
        insert(RunEventRow).values(run_id=run_id, seq=1, type="x", data=b'{"a":"\xff"}', internal=None)
    )
    session.execute(insert(FileRow).values(
        id=new_id(), user_id=1, path=b"not \xff text", path_hash="h", size=5, modified_ns=2**62,
        media_type="x/y", created_at=now,
    ))  # fmt: skip
    _make_artifacts(session, conversation_id, run_id)
    session.execute(insert(ShareRow).values(
        id=new_id(), user_id=1, tenant_id=1, conversation_id=conversation_id, token_hash="0" * 64,
        audience="anybody", title="Ünïcode", is_live=False, snapshot=f'["{third}"]', created_at=NOON,
    ))  # fmt: skip
    _add_task(session, project["id"])
    _add_room(session)
    for number in range(1200):
        session.execute(insert(UsageRow).values(
            user_id=1, tenant_id=1, run_id=run_id, subject_id=conversation_id, model="m", cost=number / 7,
            prompt_tokens=number, created_at=now,
        ))  # fmt: skip


def _add_task(session: Any, project_id: str) -> None:
    """A task with a run, results and an earlier graph, and a shared template."""
    caller = caller_without_sign_in(session.get(User, 1))
    steps = [
        NewTaskStep(id="read", name="Read ✍", goal="Ten.\n\n\tOr more.", required_tools=["file_read"]),
        NewTaskStep(id="write", name="Write", depends_on=["read"], agent_id=7, require_approval=True),
    ]
    new = NewTask(
        name="Report 报告", goal="Go.", provider_id=3, agent_id=7, project_id=project_id,
        metadata={"deep": [1, None, {"é": 2.5}]}, steps=steps,
    )  # fmt: skip
    task = add_task(session, caller, new)
    run_id = new_id()
    session.execute(insert(RunRow).values(
        id=run_id, user_id=1, tenant_id=1, kind="task", subject_id=task.id, status="completed", request="{}",
        created_at=NOON, finished_at=NOON,
    ))  # fmt: skip
    session.execute(update(TaskRow).where(TaskRow.id == task.id).values(run_id=run_id, result="Done."))
    index_task(session.connection(), task.id)
    session.execute(
        update(TaskStepRow)
        .where(TaskStepRow.task_id == task.id, TaskStepRow.id == "read")
        .values(status="completed", output="Notes ✍", attempts=1, cost=0.1 + 0.2, finished_at=NOON)
    )
    version = {"task_id": task.id, "number": 1, "steps": '[{"name":"a","id":"s1"}]', "created_at": NOON}
    session.execute(insert(TaskVersionRow).values(version))
    document = TaskDocument(
        version=1, name="Any report", goal="Go.", steps=[TaskStepDocument(id="a", name="A")]
    )
    template = NewTaskTemplate(name="Reports", description="two\nlines", document=document, is_shared=True)
    TASK_TEMPLATES.add(session, caller, template)
    prompt = NewPrompt(name="translate", title="Translate ✍", content="Into {{language:French}}:\n{{text}}")
    PROMPTS.add(session, caller, prompt, created_at=NOON, updated_at=NOON)


def _add_room(session: Any) -> None:
    """A room with a run, two seats, a member and messages."""
    room = ChatRoomRow(
        id=new_id(), user_id=1, tenant_id=1, title="Talk 会议", task="Discuss.\n\nWell.", max_rounds=7,
        policy='{"name":"selector","provider_id":3,"model":"m"}', current_round=2, run_id=new_id(),
        created_at=NOON, updated_at=NOON,
    )  # fmt: skip
    session.add(room)
    session.flush()
    index_room(session, room)
    critic = NewSeat(name="Crític", role="finds faults", provider_id=3, model="m", tools=["file_read"])
    seats = [
        seat_row(room, critic),
        seat_row(room, NewSeat(agent_id=7, temperature=0.1 + 0.2, muted=True), session.get(AgentRow, 7)),
    ]
    for number, seat in enumerate(seats):
        seat.turn_order = number
        session.add(seat)
        session.flush()
    room.stop = f'{{"any":[{{"rounds":3}},{{"phrase":"done","seat_id":{seats[0].id}}}]}}'
    session.execute(insert(RunRow).values(
        id=room.run_id, user_id=1, tenant_id=1, kind="room", subject_id=room.id, status="completed",
        request="{}", created_at=NOON, finished_at=NOON,
    ))  # fmt: skip
    session.execute(insert(SubjectMemberRow).values(
        subject_id=room.id, user_id=1, owner_id=1, right="watch", created_at=NOON
    ))  # fmt: skip
    steps = [Step(id="step-0", index=0, type=StepType.TEXT, content="Not ✍ done.\x00")]
    said = NewRoomMessage(
        content=AssistantContent(steps=steps), sender_name="Crític", sender_color="#abcdef",
        seat_id=seats[0].id, round_number=1, run_id=room.run_id, token_count=3, usage=Usage(total_tokens=9),
        replay=[{"signature": "s"}], status="partial", created_at=NOON,
    )  # fmt: skip
    asked = NewRoomMessage(content=UserContent(text="Begin ✍."), sender_name="ann", created_at=NOON)
    for message in (asked, said):
        add_message(session.connection(), room.id, room.user_id, message)


def rows_of(data_paths: DataPaths) -> dict[str, list[Any]]:
    """All rows of the tables that a restore keeps unchanged."""
    left = {"users": {"workspace_path"}, "runs": {"owner", "fence"}, "llm_providers": {"api_key"},
            "search_texts": {"words"}, "memory_texts": {"id", "words"}, "chunk_texts": {"words"}}  # fmt: skip

    def work(session: Any) -> dict[str, list[Any]]:
        rows_by_table: dict[str, list[Any]] = {}
        for name, table in Base.metadata.tables.items():
            columns = [each for each in table.columns if each.name not in left.get(name, ())]
            rows = session.execute(select(*columns).order_by(*table.primary_key.columns)).all()
            rows_by_table[name] = [
                tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows
            ]
        rows_by_table["memory_texts"].sort(key=str)
        return rows_by_table

    with store_of(data_paths) as store:
        return store.read_now(work)


def files_of(data_paths: DataPaths) -> dict[str, Any]:
    """Every file and folder of the first user with its content, its execute permission and its time."""
    root = data_paths.workspaces.path_of(1)
    rows_by_table: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        state = path.lstat()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            continue
        content = path.read_bytes() if path.is_file() else None
        name = os.fsencode(path.relative_to(root)).decode("latin-1")
        rows_by_table[name] = (
            content,
            state.st_mode & 0o100,
            state.st_mtime_ns if content is not None else 0,
        )
    return rows_by_table
