"""Images in the database: stored with their message, sent to the model within bounds, deleted with
the message.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session
from store.conftest import database_url
from whole_prompt import prompt_messages

from luxx.domain.accounts.models import User
from luxx.domain.context import messages as images_module
from luxx.domain.context.messages import read_path
from luxx.domain.conversations.images import (
    MessageBlobRow,
    copy_content,
    image_ids,
    read_images,
    store_images,
)
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.files.service import FileRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.providers.models import ProviderRow
from luxx.wire.message import Attachment, PromptImage, UserContent, UserPrompt

__all__ = ["database_url"]
assert FileRow.__tablename__ == "files"
assert ProviderRow.__tablename__ == "llm_providers"  # conversations point at it


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    store.write_now(
        lambda session: session.execute(
            insert(ConversationRow).values(
                id="c", user_id=1, title="t", pinned=False, archived=False, tags="[]",
                created_at=utc_now(), updated_at=utc_now(),
            )
        )
    )  # fmt: skip
    yield store
    store.close()


def picture(data: bytes) -> tuple[Attachment, dict[str, PromptImage]]:
    blob_id = new_id()
    attachment = Attachment(
        name=f"{data[:1].decode()}.png", extension="png", content="", media_type="image/png",
        size=len(data), blob_id=blob_id,
    )  # fmt: skip
    return attachment, {blob_id: PromptImage(media_type="image/png", data=data)}


def say(store: Store, parent_id: str | None, *pictures: bytes) -> tuple[str, UserContent]:
    """Stores a user message with images."""
    made = [picture(data) for data in pictures]
    content = UserContent(text="look", attachments=[attachment for attachment, _ in made])
    images = {blob_id: image for _, each in made for blob_id, image in each.items()}
    return add(store, parent_id, content, images), content


def add(store: Store, parent_id: str | None, content: UserContent, images: Any) -> str:
    message_id = new_id()

    def work(session: Session) -> None:
        session.execute(
            insert(MessageRow).values(
                id=message_id, user_id=1, conversation_id="c", parent_id=parent_id, role="user",
                content=msgspec.json.encode(content).decode(), token_count=0, status="complete",
                created_at=utc_now(),
            )
        )  # fmt: skip
        store_images(session.connection(), message_id, images)

    store.write_now(work)
    return message_id


def shown(store: Store, leaf_id: str, *, with_images: bool = True) -> list[tuple[bytes, ...]]:
    """The images of each user prompt."""
    past = store.read_now(lambda s: read_path(s.connection(), leaf_id, with_images=with_images))
    prompts = [each for each in prompt_messages("", past) if isinstance(each, UserPrompt)]
    return [tuple(image.data for image in prompt.images) for prompt in prompts]


def count(store: Store) -> int:
    return store.read_now(
        lambda session: session.scalar(select(func.count()).select_from(MessageBlobRow)) or 0
    )


def test_each_message_shows_its_own_images_in_their_order(store: Store) -> None:
    first, _ = say(store, None, b"a", b"b")
    second, _ = say(store, first)
    third, _ = say(store, second, b"c")
    assert shown(store, third) == [(b"a", b"b"), (), (b"c",)]
    assert shown(store, third, with_images=False) == [(), (), ()]


def test_without_images_no_query_is_made_for_any(store: Store) -> None:
    leaf, _ = say(store, None)
    store.write_now(lambda session: session.execute(text("ALTER TABLE message_blobs RENAME TO elsewhere")))
    assert shown(store, leaf) == [()]


def test_the_newest_images_are_shown_within_the_budget(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "MAX_PROMPT_IMAGE_BYTES", 5)
    first, _ = say(store, None, b"aa")
    leaf, _ = say(store, first, b"bbb", b"cc")
    assert shown(store, leaf) == [(), (b"bbb", b"cc")]
    monkeypatch.setattr(images_module, "MAX_PROMPT_IMAGES", 1)
    assert shown(store, leaf) == [(), (b"bbb",)]


def test_the_prompt_says_which_images_are_left_out(store: Store) -> None:
    leaf, _ = say(store, None, b"a")
    past = store.read_now(lambda s: read_path(s.connection(), leaf))
    (prompt,) = prompt_messages("", past)
    assert isinstance(prompt, UserPrompt)
    assert prompt.text == "look\n\nAttached image a.png (not shown to this model)."
    past = store.read_now(lambda s: read_path(s.connection(), leaf, with_images=True))
    (prompt,) = prompt_messages("", past)
    assert isinstance(prompt, UserPrompt)
    assert prompt.text == "look\n\nAttached image a.png."


def test_a_message_that_names_the_image_of_another_message_gets_none(store: Store) -> None:
    _, content = say(store, None, b"a")
    thief = add(store, None, content, {})
    assert shown(store, thief) == [()]
    read = store.read_now(lambda s: read_images(s.connection(), thief, image_ids(content)))
    assert read == {}


def test_a_copied_message_has_images_of_its_own(store: Store) -> None:
    first, content = say(store, None, b"a", b"b")
    again, images = store.read_now(lambda s: copy_content(s.connection(), first, content))
    second = add(store, None, again, images)
    assert not set(image_ids(again)) & set(image_ids(content))
    store.write_now(lambda session: session.execute(delete(MessageRow).where(MessageRow.id == first)))
    assert shown(store, second) == [(b"a", b"b")]
    assert count(store) == 2


@pytest.mark.parametrize("row", [MessageRow, ConversationRow, User])
def test_no_image_outlives_its_message_its_conversation_or_its_user(store: Store, row: Any) -> None:
    say(store, None, b"a")
    assert count(store) == 1
    store.write_now(lambda session: session.execute(delete(row)))
    assert count(store) == 0
