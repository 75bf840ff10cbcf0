"""Conversations and agents whose model reads only the newest messages."""

from api.server_process import ServerProcess

from luxx.providers.scripted import ScriptedProvider, Text
from scenarios.client import AsyncApiClient, Json
from scenarios.scripts import always_replies


async def texts_of(ann: AsyncApiClient, model: ScriptedProvider, conversation: str) -> list[str]:
    """The texts that the model read in the last of five turns."""
    for number in range(5):
        await ann.post("/messages", {"conversation_id": conversation, "content": f"Question {number}"})
    messages = model.requests[-1].json["messages"]
    return [str(message["content"]) for message in messages if message["role"] != "system"]


NEWEST_FOUR = ["Question 0", "Question 2", "Yes.", "Question 3", "Yes.", "Question 4"]
"""The first message, and the newest four from a question on."""


async def test_a_conversation_or_its_agent_says_how_many_messages_a_model_reads(
    server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(always_replies(Text(text="Yes."))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        chosen: Json = {"provider_id": await ann.connect(model.url), "model": "scripted"}
        agent = await ann.post("/agents", {"name": "Short", "tools": [], "sliding_window": 4, **chosen})
        for body in ({"sliding_window": 4, **chosen}, {"agent_id": agent["id"]}):
            conversation = await ann.post("/conversations", body)
            assert conversation["sliding_window"] == body.get("sliding_window")
            assert await texts_of(ann, model, conversation["id"]) == NEWEST_FOUR
        found = await ann.get(f"/conversations/{conversation['id']}/context")
        last = found["last_compression"]
        assert (last["compression_strategy"], last["messages"]) == ("truncate", 4)
        # 0 reads all, whatever the agent says; an export keeps it.
        path = f"/conversations/{conversation['id']}"
        await ann.ask("PUT", path, {"sliding_window": 0})
        texts = await texts_of(ann, model, conversation["id"])
        assert texts.count("Yes.") == 7, "what was left out stays so, and nothing more is"
        exported = (await ann.ask("GET", f"{path}/export", format="json")).json()
        imported = await ann.post("/conversations/import", exported)
        copy = await ann.get(f"/conversations/{imported['conversation_ids'][0]}")
        fork = await ann.post(f"{path}/fork")
        assert copy["sliding_window"] == fork["sliding_window"] == 0
        document = (await ann.ask("GET", f"/agents/{agent['id']}/export")).text
        assert "sliding_window: 4" in document
        for wrong in (-1, 10_001, "all", True):
            assert (await ann.ask("PUT", path, {"sliding_window": wrong})).status_code == 400
