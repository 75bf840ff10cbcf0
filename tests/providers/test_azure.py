"""Azure OpenAI: its addresses, its key header, and its models' names, which are those of deployments."""

import pytest
from provider_calls import KEY, calling

from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.providers.openai_responses.adapter import RESPONSES
from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from luxx.wire.message import UserPrompt

RESOURCE = "https://acme.openai.azure.com"
DEPLOYMENT = f"{RESOURCE}/openai/deployments/chat"
ASK = CompletionRequest(model="chat", messages=[UserPrompt(text="hello")], max_tokens=9)


def target(base_url: str, provider_type: str = "azure_openai", key: str = "azure-key") -> Target:
    return Target(provider_id=1, provider_type=provider_type, base_url=base_url, api_key=key)


@pytest.mark.parametrize(
    ("base_url", "chat", "responses", "models"),
    [
        (
            RESOURCE,
            f"{RESOURCE}/openai/v1/chat/completions",
            f"{RESOURCE}/openai/v1/responses",
            f"{RESOURCE}/openai/v1/models",
        ),
        (
            f"{RESOURCE}/openai/v1/?api-version=preview",
            f"{RESOURCE}/openai/v1/chat/completions?api-version=preview",
            f"{RESOURCE}/openai/v1/responses?api-version=preview",
            f"{RESOURCE}/openai/v1/models?api-version=preview",
        ),
        (
            f"{DEPLOYMENT}?api-version=2024-10-21",
            f"{DEPLOYMENT}/chat/completions?api-version=2024-10-21",
            f"{RESOURCE}/openai/responses?api-version=2024-10-21",
            f"{RESOURCE}/openai/models?api-version=2024-10-21",
        ),
        (
            f"{DEPLOYMENT}/chat/completions?api-version=2024-10-21",
            f"{DEPLOYMENT}/chat/completions?api-version=2024-10-21",
            f"{RESOURCE}/openai/responses?api-version=2024-10-21",
            f"{RESOURCE}/openai/models?api-version=2024-10-21",
        ),
    ],
)
def test_version_in_the_address_is_in_every_request(
    base_url: str, chat: str, responses: str, models: str
) -> None:
    for provider_type in ("azure_openai", "openai", "openai_compatible"):
        azure = target(base_url, provider_type)

        assert OPENAI.build_request(ASK, azure, stream=True).url == chat
        assert RESPONSES.build_request(ASK, azure, stream=True).url == responses
        assert OPENAI.models_request(azure).url == models


@pytest.mark.parametrize(
    ("provider_type", "base_url", "key", "header"),
    [
        ("azure_openai", RESOURCE, "azure-key", {"api-key": "azure-key"}),
        ("openai_responses", f"{RESOURCE}/openai/v1", "azure-key", {"api-key": "azure-key"}),
        ("azure_openai", "https://gateway.example/azure", "azure-key", {"api-key": "azure-key"}),
        ("azure_openai", RESOURCE, "eyJ0eXAi.b.c", {"authorization": "Bearer eyJ0eXAi.b.c"}),
        ("openai", "https://api.openai.com/v1", "sk-1", {"authorization": "Bearer sk-1"}),
        ("azure_openai", RESOURCE, "", {}),
    ],
)
def test_key_is_sent_in_the_header_of_its_kind(
    provider_type: str, base_url: str, key: str, header: dict[str, str]
) -> None:
    headers = RESPONSES.build_request(ASK, target(base_url, provider_type, key), stream=True).headers

    assert {name: headers[name] for name in ("api-key", "authorization") if name in headers} == header


async def test_deployment_is_called_and_no_list_of_models_replaces_its_name() -> None:
    async with ScriptedProvider(Script(rules=[Rule(reply=[Text(text="ok")])])) as server, calling() as caller:
        azure = target(f"{server.url}/openai/deployments/chat?api-version=2024-10-21", key=KEY)

        result = await caller.call(azure, ASK)
        names = await caller.client.list_models(azure)

        asked, listed = server.requests
        assert (result.text, names) == ("ok", [])
        assert asked.path == "/openai/deployments/chat/chat/completions?api-version=2024-10-21"
        assert asked.headers["api-key"] == KEY
        assert listed.path == "/openai/models?api-version=2024-10-21"
