"""The files of skills on both databases: how many bytes stay, and which copies on disk."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_user import add_user
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ProjectRow
from luxx.domain.skills import files
from luxx.domain.skills.files import SkillCopies
from luxx.domain.skills.layers import SkillLayers
from luxx.domain.skills.models import SkillFileRow
from luxx.domain.skills.registry import SkillDirectories
from luxx.domain.skills.service import SkillService
from luxx.domain.skills.skill import SkillScope
from luxx.domain.skills.upload import GivenFiles
from luxx.domain.skills.views import SkillView
from luxx.errors import TooLarge
from luxx.infra.bus.core import Bus
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.tools.core import ToolRegistry
from luxx.tools.sources import ToolSources
from luxx.wire.tool import CommandPermission

assert Services  # Importing `Services` imports every table.
ANN = Caller(
    user_id=1, tenant_id=1, username="ann", permission_level=CommandPermission.READ_ONLY, sign_in_id=""
)
QUOTA_MB = 1
PART = 300_000


@pytest.fixture
def store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    opened = Store(open_engine(resolve_url(ready_url, tmp_path)))
    opened.write_now(add_user)
    yield opened
    opened.close()


def test_skills_have_a_quota_and_the_files_of_earlier_ones_a_limit(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_UNUSED", 2 * PART)
    copies = SkillCopies(tmp_path)
    layers = SkillLayers(SkillDirectories([], tmp_path), copies, Bus("one"))
    skills = SkillService(store, layers, ToolSources(ToolRegistry()), QUOTA_MB)
    project = new_id()

    def add_project(session: Session) -> None:
        times = {"created_at": utc_now(), "updated_at": utc_now()}
        session.execute(insert(ProjectRow).values(id=project, user_id=1, name="One", description="", **times))

    def digests(session: Session) -> set[str]:
        return set(session.scalars(select(SkillFileRow.digest)))

    async def upload(number: int) -> SkillView:
        text = f"---\nname: skill-{number}\ndescription: One.\n---\n\nText.\n".encode()
        given = GivenFiles(files={"SKILL.md": text, "data": bytes([number]) * PART})
        return await skills.upload(ANN, SkillScope.PROJECT, project, given)

    async def change_skills() -> None:
        await store.write(add_project)
        added = [await upload(number) for number in range(3)]
        with pytest.raises(TooLarge) as refused:
            await upload(3)
        assert refused.value.kind == "quota_exceeded"
        assert await store.read(digests) == {one.digest for one in added}
        first = await store.read(lambda session: layers.for_caller(session, ANN, project)["skill-0"])
        await copies.make(store, [first])
        assert (first.folder / "data").stat().st_size == PART
        for one in added:
            await skills.delete(ANN, one.id)
        # A third file would make it more than MOST_UNUSED; the newest ones stay for runs.
        assert len(await store.read(digests)) == 1
        await copies.remove_unused(store)
        assert first.folder.exists() == (first.digest in await store.read(digests))
        for number in range(4, 8):
            await skills.delete(ANN, (await upload(number)).id)
        total = await store.read(
            lambda session: session.scalar(select(func.sum(func.length(SkillFileRow.content))))
        )
        assert int(total or 0) <= 2 * PART
        await copies.remove_unused(store)
        assert not first.folder.exists()

    asyncio.run(change_skills())
