"""The baseline of a room: the model calls of its turns with httpx and json, without storage or permissions.

Run as `python -m tests.bench.baseline_room URL TURNS MARKER`; prints CPU ms of a turn as JSON.
"""

import json
from typing import Any

import httpx
import uvloop

from tests.bench.discussion import SEATS, TASK, arguments, system_prompt, timed


def prompt(name: str, marker: str, said: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The messages of one turn: those of the others by name, the seat's own as the assistant's."""
    messages = [
        {"role": "system", "content": system_prompt(name, marker)},
        {"role": "user", "content": TASK},
    ]
    for speaker, text in said:
        if speaker == name:
            messages.append({"role": "assistant", "content": text})
        else:
            messages.append({"role": "user", "content": f"[{speaker}] {text}"})
    return messages


async def complete(http: httpx.AsyncClient, url: str, messages: list[dict[str, Any]]) -> str:
    """One streamed model call. Returns its text."""
    text: list[str] = []
    body = {"model": "bench-model", "stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", f"{url}/chat/completions", json=body | {"messages": messages}) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                text.append(choice["delta"].get("content") or "")
    return "".join(text)


async def run(http: httpx.AsyncClient, url: str, turns: int, marker: str) -> int:
    """A discussion of so many turns. Returns the characters of its texts."""
    said: list[tuple[str, str]] = []
    for number in range(turns):
        name = SEATS[number % len(SEATS)]
        said.append((name, await complete(http, url, prompt(name, marker, said))))
    return sum(len(text) for _, text in said)


async def main(url: str, turns: int, marker: str) -> None:
    """Warms up once, then measures itself."""
    measured: dict[str, float] = {}
    async with httpx.AsyncClient(timeout=30) as http:
        await run(http, url, turns, marker)
        with timed(measured, "turn", turns):
            measured["characters"] = await run(http, url, turns, marker)
    print(json.dumps(measured))


if __name__ == "__main__":
    uvloop.run(main(*arguments()))
