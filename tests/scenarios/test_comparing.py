"""kill -9 while two models answer one message: both answers go on by themselves, and a second server shows
them."""

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Counts, Finish, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.restarting_client import RestartingClient

pytestmark = pytest.mark.heavy


def script() -> Script:
    usage = Counts(prompt=10, completion=2)
    return Script(
        rules=[
            Rule(
                when=When(model=f"^{name}$"),
                reply=[
                    Text(text=f"{name} begins"),
                    Gate(name=name),
                    Text(text=" and ends."),
                    usage,
                    Finish(),
                ],
            )
            for name in ("scripted", "other")
        ]
    )


async def test_both_go_on_after_a_kill_in_the_middle(own_server: ServerProcess) -> None:
    async with ScriptedProvider(script()) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        provider = (await ann.get(f"/conversations/{conversation}"))["provider_id"]
        other = {"provider_id": provider, "model": "other"}
        path = f"/conversations/{conversation}/comparison"
        started = await ann.post(path, {"content": "Hello", "compare_with": other})
        runs = [one["run"]["id"] for one in started["answers"]]
        for name in ("scripted", "other"):
            await model.reached(name)
        # The first one has ended when the server dies: the other one is the active run.
        model.release("scripted")
        await ann.follow_to_end(runs[0])
        assert (await ann.get(f"/conversations/{conversation}"))["run_id"] == runs[1]
        await ann.kill()
        model.release("other")
        await ann.start()
        await ann.follow_to_end(runs[1])

        found = await ann.get(path)
        assert [one["run"]["status"] for one in found["answers"]] == ["completed", "completed"]
        texts = [one["message"]["text"] for one in found["answers"]]
        assert texts == ["scripted begins and ends.", "other begins and ends."]
        shown = await ann.get(f"/conversations/{conversation}")
        assert shown["run_id"] is None
        assert shown["comparing_id"] == shown["selected_leaf_id"] == found["message_id"]

        kept = found["answers"][1]["message"]["id"]
        changed = await ann.ask("PUT", f"/conversations/{conversation}", {"selected_leaf_id": kept})
        assert changed.status_code == 200, changed.text

        # Both are in the middle when the server dies.
        started = await ann.post(path, {"content": "Again", "compare_with": other})
        runs = [one["run"]["id"] for one in started["answers"]]
        await ann.kill_and_start()
        for run in runs:
            await ann.follow_to_end(run)
        found = await ann.get(path)
        assert [one["run"]["status"] for one in found["answers"]] == ["completed", "completed"]
        assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None
