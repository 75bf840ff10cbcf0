"""The first example of the README, answered by the model that comes with Luxx."""

import re
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient

from luxx.providers.local.files import find_model

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
FIRST_EXAMPLE = re.compile(r'^\$ luxx chat "([^"]+)"\n(?:signed in .*\n)?(.+)$', re.MULTILINE)
TIMES = 30


@pytest.mark.heavy
async def test_the_first_example_of_the_readme_is_answered_right_every_time(
    model_data: Path, tmp_path: Path
) -> None:
    example = FIRST_EXAMPLE.search(README)
    assert example is not None
    question, shown = example.groups()
    settings = {"LUXX_LOCAL__ENABLED": "true", "LUXX_LOCAL__MODEL_PATH": str(find_model(None, model_data))}
    with ServerProcess(tmp_path, **settings) as server:
        async with AsyncApiClient(server.url) as ann:
            answers: list[str] = []
            for _ in range(TIMES):
                conversation = (await ann.post("/conversations", {}))["id"]
                answer = await ann.post("/messages", {"conversation_id": conversation, "content": question})
                assert (answer["provider_name"], answer["finish"]) == ("local", "stop")
                answers.append(answer["text"].strip())
    assert answers == [shown] * TIMES
