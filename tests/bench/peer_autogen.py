"""AutoGen's round-robin group chat of the four participants, streamed, nothing kept.

Run as `python -m tests.bench.peer_autogen URL TURNS MARKER`; prints CPU ms of a turn as JSON.
"""

import asyncio
import json

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from tests.bench.discussion import SEATS, TASK, arguments, system_prompt, timed

CHARACTERISTICS = {
    "vision": False,
    "function_calling": False,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


async def run(client: OpenAIChatCompletionClient, turns: int, marker: str) -> int:
    """A discussion of so many turns. Returns the characters of its texts."""
    agents = [
        AssistantAgent(name, client, system_message=system_prompt(name, marker), model_client_stream=True)
        for name in SEATS
    ]
    team = RoundRobinGroupChat(agents, max_turns=turns)
    characters = 0
    async for event in team.run_stream(task=TASK):
        if isinstance(event, TextMessage) and event.source != "user":
            characters += len(event.content)
    return characters


async def main(url: str, turns: int, marker: str) -> None:
    """Warms up once, then measures itself."""
    measured: dict[str, float] = {}
    client = OpenAIChatCompletionClient(
        model="bench-model",
        base_url=url,
        api_key="none",
        model_info=CHARACTERISTICS,
        include_name_in_message=False,
    )
    await run(client, turns, marker)
    with timed(measured, "turn", turns):
        measured["characters"] = await run(client, turns, marker)
    await client.close()
    print(json.dumps(measured))


if __name__ == "__main__":
    asyncio.run(main(*arguments()))
