"""Which models get tools and which limit of tokens: what the catalog knows, what somebody asks for."""

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient, Json
from scenarios.server import LuxxServer

KNOWN, UNKNOWN, SMALL = "gpt-4o", "nobody-knows-me", "smollm2-135m-instruct"
ANSWER = Rule(name="answers", reply=[Text(text="Yes")])


async def asked(ann: AsyncApiClient, provider: ScriptedProvider, settings: Json, **options: object) -> Json:
    """What the provider receives for a message with these options in a conversation with these settings."""
    conversation = (await ann.post("/conversations", settings))["id"]
    await ann.wait_for_end((await ann.start_run(conversation, **options))["id"])
    return provider.requests[-1].json


async def test_only_models_that_are_known_to_use_tools_get_them_unasked(server: LuxxServer) -> None:
    async with ScriptedProvider(Script(rules=[ANSWER])) as model, AsyncApiClient(server.url) as ann:
        settings = {"provider_id": await ann.connect(model.url)}
        offered = {
            name: "tools" in await asked(ann, model, settings, model=name) for name in (KNOWN, UNKNOWN, SMALL)
        }
        assert offered == {KNOWN: True, UNKNOWN: False, SMALL: False}
        for tools in (True, ["python_eval"]):
            assert "tools" in await asked(ann, model, settings, model=UNKNOWN, tools=tools)


async def test_an_agent_that_names_its_tools_gives_them_to_an_unknown_model(server: LuxxServer) -> None:
    async with ScriptedProvider(Script(rules=[ANSWER])) as model, AsyncApiClient(server.url) as ann:
        fields = {"provider_id": await ann.connect(model.url), "model": UNKNOWN}
        names = {"Names": ["python_eval"], "Leaves open": None, "Refuses": []}
        offered: dict[str, list[str]] = {}
        for name, tools in names.items():
            agent = await ann.post("/agents", {"name": name, "tools": tools, **fields})
            request = await asked(ann, model, {"agent_id": agent["id"]})
            offered[name] = [tool["function"]["name"] for tool in request.get("tools", [])]
        assert offered["Names"] == ["python_eval", "result_read"]
        assert offered["Leaves open"] == offered["Refuses"] == []


async def test_the_longest_answer_of_a_known_model_is_sent_as_its_limit(server: LuxxServer) -> None:
    async with ScriptedProvider(Script(rules=[ANSWER])) as model, AsyncApiClient(server.url) as ann:
        settings = {"provider_id": await ann.connect(model.url)}

        async def limit(name: str, **more: object) -> int | None:
            request = await asked(ann, model, {**settings, **more}, model=name)
            return request.get("max_tokens", request.get("max_completion_tokens"))

        assert await limit(KNOWN) == 16_384
        assert await limit(KNOWN, max_tokens=50) == 50
        assert await limit(KNOWN, max_tokens=5_000_000) == 16_384
        assert await limit(UNKNOWN) is None
        assert await limit(UNKNOWN, max_tokens=5_000_000) == 5_000_000
        # An answer has to fit beside its prompt.
        long_prompt = "word " * 5_200
        assert 128 <= (await limit(SMALL, system_prompt=long_prompt) or 0) < 2_048


async def test_a_model_that_the_provider_does_not_list_is_refused_before_a_run(server: LuxxServer) -> None:
    script = Script(rules=[ANSWER], models=["gpt-4.1-mini", "gpt-4o-2024-08-06"])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        body = {"conversation_id": conversation, "content": "Hello", "model": "gpt-4.1-mimi"}
        # Nothing is known of the provider's models yet.
        assert (await ann.post("/messages", body))["model"] == "gpt-4.1-mimi"
        await ann.get(f"/providers/{provider_id}/models")
        for path in ("/messages", "/messages/stream"):
            response = await ann.ask("POST", path, body)
            assert response.status_code == 400
            assert response.json()["detail"]["kind"] == "model_unlisted"
            assert "has no model 'gpt-4.1-mimi'; it has gpt-4.1-mini" in response.json()["error"]
        assert (await ann.get("/messages", conversation_id=conversation))["total"] == 2
        assert (await ann.post("/messages", {**body, "model": "gpt-4o"}))["model"] == "gpt-4o"
