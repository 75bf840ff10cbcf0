"""A client that waits for an answer costs few queries while another process drives the run."""

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import event

from engine.in_process_cluster import GATED, InProcessCluster, always_replies, ended

MOST_POLLS = 30


async def test_waiting_for_an_answer_of_another_process_costs_few_queries(
    shared_url: str, tmp_path: Path
) -> None:
    async with InProcessCluster(tmp_path, shared_url, always_replies(*GATED)) as cluster:
        first, second = await cluster.services(), await cluster.services()
        ann, sent = await cluster.gated_run(first)
        polls: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, given: Any, *_more: Any) -> None:
            if sent.id in str(given):
                polls.append(statement)

        event.listen(second.engine, "before_cursor_execute", note)
        answering = asyncio.create_task(second.chats.answer(ann, sent))
        await asyncio.wait({answering}, timeout=1.0)
        assert not answering.done()
        assert 0 < len(polls) < MOST_POLLS
        assert not second.hub.is_watched(sent.id), "nothing that it says need be carried here"
        cluster.model.release("gate")
        await ended(first, ann, sent)
        async with asyncio.timeout(2):
            assert (await answering).text == "I am here."
