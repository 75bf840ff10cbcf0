"""What several scenarios use: scripts whose first call stops in the middle, and checks of how a run ended."""

from scenarios.client import AsyncApiClient, AsyncEventStream
from scenarios.screen import Screen
from scenarios.scripts import FIRST_THOUGHT, PROSE, words

from chaos.invariants import uncut_text
from luxx.providers.scripted import Counts, Rule, Script, Text, Thinking, When

HALF = "word109 "
"""The text before the gate in the middle of PROSE."""


def half_and_whole(gate: str = "middle") -> Script:
    """The first call stops in the middle; later ones send the whole text at once."""
    first = [Thinking(text=FIRST_THOUGHT), *words(PROSE, gate), Counts(prompt=1, completion=2)]
    return Script(
        rules=[
            Rule(name="cut", when=When(call=1), reply=first),
            Rule(name="whole", reply=[Thinking(text=FIRST_THOUGHT), Text(text=PROSE), Counts(prompt=1)]),
        ]
    )


async def read_until_text(stream: AsyncEventStream, text: str) -> None:
    while text not in stream.screen.text:
        await stream.until("process_step", timeout=5)


async def check_completed(ann: AsyncApiClient, conversation: str, *screens: Screen) -> str:
    """Returns the uninterrupted text; checks that every client saw it and that it is stored."""
    screen = screens[0]
    message = await ann.answer_shown_by(conversation, screen)
    assert message["status"] == "complete"
    assert screen.done is not None
    assert screen.done["status"] == "completed"
    for other in screens[1:]:
        assert other.ordered() == screen.ordered()
        assert other.last_id == screen.last_id
    run = await ann.run(screen.run_id)
    assert (run["status"], run["last_seq"]) == ("completed", screen.last_id)
    assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None
    assert [m["role"] for m in await ann.messages(conversation)] == ["user", "assistant"]
    return uncut_text(screen)


async def check_cancelled(ann: AsyncApiClient, conversation: str, *screens: Screen) -> str:
    """Returns the text of a cancelled run; checks that every client saw it and that it is stored."""
    screen = screens[0]
    message = await ann.answer_shown_by(conversation, screen)
    assert message["status"] == "partial"
    for other in screens:
        assert other.done is not None
        assert other.done["status"] == "stopped"
        assert other.ordered() == screen.ordered()
    run = await ann.run(screen.run_id)
    assert (run["status"], run["stop_reason"]) == ("cancelled", "cancelled")
    assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None
    return screen.text
