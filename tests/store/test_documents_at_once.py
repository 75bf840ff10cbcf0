"""Documents that are added to two bases of one owner at the same moment do not exceed the quota together."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import new_ready_database
from provider_service.services import ANN
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from luxx.domain.knowledge_bases import KnowledgeBaseRow
from luxx.errors import TooLarge
from luxx.features.knowledge.rows import NewDocument, store_document
from luxx.features.knowledge.service import BaseColumns, add_base
from luxx.infra.store.engine import open_engine, resolve_url
from store.test_memory import fill

WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
SECONDS = 30.0


@pytest.fixture
def engine(postgresql: str, tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(resolve_url(new_ready_database(postgresql, "documents_at_once"), tmp_path))
    yield engine
    engine.dispose()


def add_document(session: Session, base_id: str) -> None:
    base = session.get_one(KnowledgeBaseRow, base_id)
    new = NewDocument(name="a.txt", size=700_000, hash="", pieces=[b"a"])
    store_document(session.connection(), base, ANN.user_id, new, quota_mb=1)


def test_the_second_of_two_documents_that_fit_alone_is_refused(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        fill(session)
        ids = [add_base(session, ANN, BaseColumns(name=name, is_shared=False)).id for name in "ab"]
    problems: list[str] = []

    def second() -> None:
        try:
            with Session(engine) as session, session.begin():
                add_document(session, ids[1])
        except TooLarge as error:
            problems.append(error.kind)

    thread = threading.Thread(target=second)
    with Session(engine) as session, session.begin(), engine.connect() as look:
        add_document(session, ids[0])
        thread.start()
        while thread.is_alive() and not look.scalar(text(WAITS)):
            thread.join(0.01)
    thread.join(SECONDS)
    assert problems == ["quota_exceeded"]
