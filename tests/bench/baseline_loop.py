"""The baseline of a tool loop: httpx, json and four plain functions, without storage or permissions.

Run as `python -m tests.bench.baseline_loop URL RUNS PROMPT`; prints CPU seconds and iterations as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import uvloop

FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "bench_one": lambda value: value,
    "bench_two": len,
    "bench_three": str.upper,
    "bench_four": str.split,
}
PARAMETERS = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in FUNCTIONS
]


async def complete(http: httpx.AsyncClient, url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One streamed model call. Returns the assistant's message."""
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    body = {"model": "bench-model", "stream": True, "messages": messages, "tools": TOOLS}
    async with http.stream("POST", url, json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                text.append(delta.get("content") or "")
                for part in delta.get("tool_calls") or ():
                    call = calls.setdefault(
                        part["index"], {"type": "function", "function": {"arguments": ""}}
                    )
                    if "id" in part:
                        call["id"] = part["id"]
                        call["function"]["name"] = part["function"]["name"]
                    call["function"]["arguments"] += part["function"].get("arguments", "")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


async def run(http: httpx.AsyncClient, url: str, prompt: str) -> int:
    """One loop to its end. Returns the number of iterations."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    iterations = 0
    while True:
        message = await complete(http, url, messages)
        messages.append(message)
        if "tool_calls" not in message:
            return iterations
        iterations += 1
        for call in message["tool_calls"]:
            function = call["function"]
            result = FUNCTIONS[function["name"]](json.loads(function["arguments"])["value"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})


async def main(url: str, runs: int, prompt: str) -> None:
    """Warms up once, then measures itself."""
    async with httpx.AsyncClient(timeout=30) as http:
        await run(http, url, prompt)
        before = time.process_time()
        iterations = sum([await run(http, url, prompt) for _ in range(runs)])
        print(json.dumps({"cpu": time.process_time() - before, "iterations": iterations}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
