"""kill -9 around answers whose agent or skill the words of the message chose: nothing is chosen twice."""

import asyncio
import json

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import Json
from scenarios.restarting_client import SOON_SECONDS, RestartingClient, finished_text

pytestmark = pytest.mark.heavy

LETTER = "Translate this letter into Portuguese"
INVOICE = "Please make an invoice for our customer"
AGENT = {
    "name": "Lusophone",
    "description": "Translates letters into Portuguese and from Portuguese.",
    "system_prompt": "You translate.",
}
SKILL = """---
name: invoice-maker
description: Makes invoices for customers.
triggers: [make an invoice]
---
Number invoices by year.
"""


async def chosen(ann: RestartingClient, conversation: str) -> list[Json]:
    """The events of a conversation by which something was chosen."""
    events = (await ann.get(f"/conversations/{conversation}/events", limit=200))["events"]
    return [event for event in events if event["type"] in ("subagent_assigned", "skill_activated")]


async def answered_over_kills(
    ann: RestartingClient, model: ScriptedProvider, conversation: str, content: str, gate: str
) -> tuple[Json, Json]:
    """The answer and the run, which is killed before its first call, and before the end of its answer."""
    run = await ann.start_run(conversation, content)
    await ann.kill()
    count = len(model.requests)
    await ann.start()
    await model.arrived(count + 1, SOON_SECONDS)
    await model.reached(gate)
    await ann.kill()
    model.release(gate)
    await ann.start()
    await ann.follow_to_end(run["id"])
    question, answer = await ann.messages(conversation)
    assert (question["text"], finished_text(answer)) == (content, "Done.")
    run = await ann.run(run["id"])
    assert (run["status"], run["message_id"]) == ("completed", answer["id"])
    return answer, run


async def test_what_the_words_of_a_message_chose_is_chosen_once_over_kills(own_server: ServerProcess) -> None:
    folder = own_server.data_dir / "skills" / "invoice-maker"
    await asyncio.to_thread(folder.mkdir, parents=True)
    await asyncio.to_thread((folder / "SKILL.md").write_text, SKILL, "utf-8")
    said = {"letter": LETTER, "invoice": "Number invoices"}
    rules = [
        Rule(when=When(user=text), reply=[Text(text="Done."), Gate(name=gate)]) for gate, text in said.items()
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        agent = (await ann.post("/agents", AGENT))["id"]
        body = {"provider_id": await ann.connect(model.url), "routing": "auto"}
        letter, invoice = [(await ann.post("/conversations", body))["id"] for _ in range(2)]

        answer, run = await answered_over_kills(ann, model, letter, LETTER, "letter")
        assert answer["sender_name"] == "Lusophone"
        assert all("You translate." in str(received.json["messages"][0]) for received in model.requests)
        (assigned,) = await chosen(ann, letter)
        assert (assigned["by"], assigned["agent_id"]) == ("router", agent)
        assert assigned["subagent_run_id"] == assigned["run_id"] == run["id"]
        stats = await ann.get(f"/agents/{agent}/stats")
        assert (stats["total_invocations"], stats["failures"], stats["success_rate"]) == (1, 0, 1.0)
        assert stats["total_tokens"] == run["usage"]["total_tokens"]

        before = len(model.requests)
        answer, _ = await answered_over_kills(ann, model, invoice, INVOICE, "invoice")
        assert [step["name"] for step in answer["steps"] if step["type"] == "user"] == ["routed_skill"]
        (active,) = await chosen(ann, invoice)
        assert (active["name"], active["by"]) == ("invoice-maker", "router")
        for received in model.requests[before:]:
            assert json.dumps(received.json).count("Number invoices by year.") == 1
