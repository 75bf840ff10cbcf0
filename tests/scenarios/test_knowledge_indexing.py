"""Servers are killed while they index a document of 200 pages: each page is stored once, each passage is
embedded once but for those of the request in flight, and a changed page costs few of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from engine.in_process_cluster import until
from files.sample_files import pdf_of
from migrated_databases import new_ready_database

from luxx.providers.scripted import Script, ScriptedProvider, Vectors
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient
from scenarios.test_vectors import FACT, GOOD, QUESTION, embedding

PAGES = 200
LINES = 14
SECONDS = 60.0

pytestmark = pytest.mark.heavy


def manual(changed: str = "") -> bytes:
    """A PDF whose pages have two passages each; page 150 has the fact, page 100 what has changed."""
    special = {100: changed, 150: FACT}
    pages: list[bytes] = []
    for page in range(1, PAGES + 1):
        lines = [
            f"Page {page} line {line} says part {page * 41 + line} of machine {page * 7 + line} is tested."
            for line in range(LINES)
        ]
        lines += [special[page]] if page in special else []
        pages.append(b"".join(f"({line}) Tj 0 -14 Td ".encode() for line in lines))
    return pdf_of(*pages)


class Person:
    """Ann, who indexes one document at a server that may change."""

    def __init__(self, ann: AsyncApiClient, url: str) -> None:
        self.ann = ann
        self.url = url
        self.path = ""

    async def upload(self, data: bytes) -> Json:
        async with httpx.AsyncClient(base_url=self.url, timeout=SECONDS) as client:
            response = await client.post(
                self.path,
                files={"file": ("manual.pdf", data)},
                headers={"authorization": f"Bearer {self.ann.token}"},
            )
        assert response.status_code == 201, response.text
        return response.json()["data"]

    async def document(self) -> Json:
        return (await self.ann.get(self.path))["items"][0]

    async def chunks(self) -> list[Json]:
        path = f"{self.path}/{(await self.document())['id']}/chunks"
        pages = [await self.ann.get(path, page=page, page_size=100) for page in range(1, 5)]
        return [item for page in pages for item in page["items"]]

    async def until_stored(self, at_least: int = 1) -> None:
        async def is_so() -> bool | None:
            path = f"{self.path}/{(await self.document())['id']}/chunks"
            return (await self.ann.get(path, page_size=1))["total"] >= at_least or None

        await until(is_so, SECONDS)

    async def indexed(self) -> Json:
        """The document when it is found by words and by meaning."""

        async def is_so() -> Json | None:
            found = await self.document()
            is_done = found["status"] == "synced" and found["embedded"] == found["chunks"]
            return found if is_done else None

        return await until(is_so, SECONDS)


def embedded_texts(model: ScriptedProvider) -> list[str]:
    return [
        text
        for request in model.requests
        if request.rule == "embeddings"
        for text in request.json["input"]
        if text.startswith("Page ")
    ]


async def check_stored_once(ann: Person, model: ScriptedProvider, kills: int) -> Json:
    document = await ann.indexed()
    chunks = await ann.chunks()
    assert [chunk["position"] for chunk in chunks] == list(range(document["chunks"]))
    pages = [chunk["page"] for chunk in chunks]
    assert pages == sorted(pages)
    assert set(pages) == set(range(1, PAGES + 1))
    assert len({chunk["text"] for chunk in chunks}) == len(chunks) == document["chunks"] >= 1.5 * PAGES
    sent = embedded_texts(model)
    assert set(sent) == {chunk["text"] for chunk in chunks}
    assert len(sent) - len(set(sent)) <= 64 * kills
    return document


@asynccontextmanager
async def servers(folder: Path, url: str | None, model: ScriptedProvider) -> AsyncIterator[list[Any]]:
    settings: dict[str, str] = {**model_settings(model.url), **embedding("first")}
    if url is not None:
        settings |= {
            "LUXX_DATABASE__URL": url,
            "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
            "LUXX_RUNS__LEASE_SECONDS": "2",
        }
    async with AsyncExitStack() as hold:
        yield [
            hold.enter_context(ServerProcess(folder / name, **settings))
            for name in ("a", "b")[: 1 if url is None else 2]
        ]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_document_is_indexed_once_although_servers_are_killed(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = None
    if database == "postgresql":
        url = new_ready_database(request.getfixturevalue("postgresql"), tmp_path.name)
    async with (
        ScriptedProvider(Script(rules=[], embeddings=GOOD)) as model,
        servers(tmp_path, url, model) as running,
        RestartingClient(running[0]) as admin,
    ):
        ann = Person(admin, running[0].url)
        base = (await admin.post("/knowledge", {"name": "Manuals"}))["id"]
        ann.path = f"/knowledge/{base}/documents"
        run = (await ann.upload(manual()))["run"]
        for moment in ("storing", "embedding"):
            if moment == "storing":
                await ann.until_stored()
            else:
                before = len(embedded_texts(model))

                async def has_gone_on(before: int = before) -> bool | None:
                    return len(embedded_texts(model)) > before or None

                await until(has_gone_on, SECONDS)
            killed = admin.server
            await admin.kill()
            others = [server for server in running if server is not killed]
            if others:
                admin.server = others[0]
                await admin.reconnect_to(admin.server.url)
                killed.start()
            else:
                await admin.start()
        document = await check_stored_once(ann, model, kills=2)
        await admin.until_status(run["id"], "completed")

        sent = len(embedded_texts(model))
        ann.url = admin.server.url
        await ann.upload(manual("This line is new."))
        again = await ann.indexed()
        assert (again["id"], again["chunks"]) == (document["id"], document["chunks"])
        assert 1 <= len(embedded_texts(model)) - sent <= 3
        found = (await admin.post(f"/knowledge/{base}/search", {"query": QUESTION, "limit": 1}))["items"]
        assert (found[0]["page"], FACT in found[0]["text"]) == (150, True)
        # Whoever may not be asked for a vector searches by words.
        model.embeddings = Vectors(status=500)
        found = await admin.post(f"/knowledge/{base}/search", {"query": "line 7 of page 9", "limit": 1})
        assert found["items"][0]["page"] == 9
