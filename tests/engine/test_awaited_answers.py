"""Who sends a message and awaits its answer costs next to nothing while another process drives the run."""

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import event

from engine.conftest import Runs
from engine.town import GATED, Town, ended, says

MOST_LOOKS = 30


def test_one_who_awaits_an_answer_that_another_process_writes_looks_now_and_then(
    shared_url: str, tmp_path: Path, run: Runs
) -> None:
    async def story() -> None:
        async with Town(tmp_path, shared_url, says(*GATED)) as town:
            first, second = await town.house(), await town.house()
            ann, sent = await town.begun(first)
            looks: list[str] = []

            def note(_connection: Any, _cursor: Any, statement: str, given: Any, *_more: Any) -> None:
                if sent.id in str(given):
                    looks.append(statement)

            event.listen(second.engine, "before_cursor_execute", note)
            answering = asyncio.create_task(second.runs.answer(ann, sent))
            await asyncio.wait({answering}, timeout=1.0)
            assert not answering.done()
            assert 0 < len(looks) < MOST_LOOKS
            assert not second.hub.is_watched(sent.id), "nothing that it says need be carried here"
            town.model.release("gate")
            await ended(first, ann, sent)
            async with asyncio.timeout(2):
                assert (await answering).text == "I am here."

    run(story())
