"""The embedded model for embeddings, run for real: its vectors, its limits, and how its process ends."""

import asyncio
import math
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from local.test_local_model import is_gone
from luxx.errors import Unavailable
from luxx.infra.config.schema import EMBEDDED_EMBEDDINGS, LocalConfig, ProvidersConfig
from luxx.providers.embedding import EmbeddingClient, EmbeddingRequest
from luxx.providers.local import embedder as of_embedder
from luxx.providers.local.child import LocalState
from luxx.providers.local.embedder import MAX_TOKENS, Embedder
from luxx.providers.transport import Transport


class Embedding:
    """The model with the client that the server uses."""

    def __init__(self, embedder: Embedder, client: EmbeddingClient) -> None:
        self.embedder, self._client = embedder, client

    async def embed(self, *texts: str, is_query: bool = False) -> tuple[list[list[float]], int]:
        """The vectors, and the tokens that the model counted."""
        request = EmbeddingRequest(model=EMBEDDED_EMBEDDINGS, texts=list(texts), is_query=is_query)
        found = await self._client.embed(request, await self.embedder.target(60), has_retries=False)
        return found.vectors, found.tokens


@asynccontextmanager
async def running(folder: Path, idle_seconds: float = 60.0) -> AsyncGenerator[Embedding]:
    embedder = Embedder(LocalConfig(), folder, idle_seconds=idle_seconds)
    transport = Transport(ProvidersConfig(), None)
    try:
        yield Embedding(embedder, EmbeddingClient(transport, ProvidersConfig()))
    finally:
        await transport.aclose()
        await embedder.stop()


async def test_texts_are_cut_and_questions_come_first(tmp_path: Path) -> None:
    async with running(tmp_path) as model:
        [alone], _ = await model.embed("Who repairs the heating?", is_query=True)
        waiting = asyncio.create_task(model.embed(*["A long text about walnuts and the heating. " * 40] * 3))
        [question], _ = await model.embed("Who repairs the heating?", is_query=True)
        assert not waiting.done()
        assert math.dist(question, alone) < 1e-6
        found, tokens = await waiting
        assert len(found) == 3
        assert MAX_TOKENS * 2 < tokens <= MAX_TOKENS * 3
        # A character that becomes many, and texts without any.
        _, tokens = await model.embed("\ufdfa" * 4_000, "", "\0", "\u200b" * 4_000)
        assert MAX_TOKENS < tokens <= MAX_TOKENS * 2


async def test_only_who_has_the_key_may_use_it(tmp_path: Path) -> None:
    async with running(tmp_path) as model:
        address = await model.embedder.ensure_ready(60)
        child = psutil.Process(model.embedder.pid)
        assert address.api_key not in " ".join([*child.cmdline(), *child.environ().values()])
        headers = {"authorization": f"Bearer {address.api_key}"}
        async with httpx.AsyncClient(trust_env=False, base_url=address.base_url, timeout=60) as client:
            assert (await client.post("/embeddings", json={"input": ["tea"]})).status_code == 401
            for body in (b"", b"[]", b'{"input": [1]}', b'{"input": "tea"}', b"[" * 100_000):
                refused = await client.post("/embeddings", content=body, headers=headers)
                assert refused.status_code == 400, body
            taken = await client.post("/embeddings", json={"input": []}, headers=headers)
            assert taken.json()["data"] == []


async def test_a_killed_process_is_replaced_and_an_idle_one_ends_until_the_next_text(tmp_path: Path) -> None:
    async with running(tmp_path) as model:
        first, _ = await model.embed("Tea.")
        pid = model.embedder.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(is_gone, pid, 5)
        while model.embedder.pid == pid:  # noqa: ASYNC110  (until the server knows it)
            await asyncio.sleep(0.01)
        assert await model.embed("Tea.") == (first, 6)
    async with running(tmp_path, idle_seconds=0.2) as model:
        assert await model.embed("Tea.") == (first, 6)
        pid = model.embedder.pid
        assert pid is not None
        assert await asyncio.to_thread(is_gone, pid, 5)
        while model.embedder.state is not LocalState.STOPPED:  # noqa: ASYNC110  (until the server knows it)
            await asyncio.sleep(0.01)
        assert await model.embed("Tea.") == (first, 6)


async def test_without_its_package_or_with_another_file_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_embedder, "MODEL_SHA256", "0" * 64)
    async with running(tmp_path) as model:
        with pytest.raises(Unavailable, match="wrong SHA-256"):
            await model.embed("Tea.")
    monkeypatch.setattr(of_embedder, "_package_folder", lambda: None)
    async with running(tmp_path) as model:
        assert model.embedder.unavailable_reason() is not None
        with pytest.raises(Unavailable, match="pip install 'luxx\\[embed\\]'"):
            await model.embed("Tea.")
