"""A peer: the usual relay, FastAPI with the openai SDK. `UPSTREAM` is its base URL."""

import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI(base_url=os.environ.get("UPSTREAM", ""), api_key="none")


@app.post("/v1/chat/completions")
async def relay(request: Request) -> StreamingResponse:
    """Passes a completion on, chunk by chunk."""
    body: dict[str, Any] = await request.json()

    async def events() -> AsyncIterator[str]:
        async for chunk in await client.chat.completions.create(**body):
            yield f"data: {chunk.model_dump_json()}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
