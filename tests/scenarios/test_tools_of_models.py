"""Which models get tools and which limit of tokens: what the catalog knows, what somebody asks for."""

import httpx
from api.server_process import ServerProcess

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient, Json

KNOWN, UNKNOWN, SMALL = "gpt-4o", "nobody-knows-me", "smollm2-135m-instruct"
ONE_MODEL = Script(rules=[], models=["gpt-4.1-mini"])
ANSWER = Rule(name="answers", reply=[Text(text="Yes")])


async def asked(ann: AsyncApiClient, provider: ScriptedProvider, settings: Json, **options: object) -> Json:
    """What the provider receives for a message with these options in a conversation with these settings."""
    conversation = (await ann.post("/conversations", settings))["id"]
    await ann.wait_for_end((await ann.start_run(conversation, **options))["id"])
    return provider.requests[-1].json


async def test_only_models_that_are_known_to_use_tools_get_them_unasked(server: ServerProcess) -> None:
    async with ScriptedProvider(Script(rules=[ANSWER])) as model, AsyncApiClient(server.url) as ann:
        settings = {"provider_id": await ann.connect(model.url)}
        offered = {
            name: "tools" in await asked(ann, model, settings, model=name) for name in (KNOWN, UNKNOWN, SMALL)
        }
        assert offered == {KNOWN: True, UNKNOWN: False, SMALL: False}
        for tools in (True, ["python_eval"]):
            assert "tools" in await asked(ann, model, settings, model=UNKNOWN, tools=tools)


async def test_an_agent_that_names_its_tools_gives_them_to_an_unknown_model(server: ServerProcess) -> None:
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


async def test_the_longest_answer_of_a_known_model_is_sent_as_its_limit(server: ServerProcess) -> None:
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


async def test_a_model_that_the_provider_does_not_list_is_refused_before_a_run(server: ServerProcess) -> None:
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


async def test_a_model_that_is_not_listed_is_refused_wherever_it_is_saved(server: ServerProcess) -> None:
    async with ScriptedProvider(ONE_MODEL) as model, AsyncApiClient(server.url) as ann:
        mine = await ann.connect(model.url)
        # An address can be that of an earlier test's provider, and a document names one by its name.
        named = {"provider": f"lists {mine}", "model": "gpt-4.1-mimi"}
        await ann.ask("PUT", f"/providers/{mine}", {"name": named["provider"]})
        await ann.get(f"/providers/{mine}/models")
        assert (await ann.get(f"/providers/{mine}"))["models_at"] is not None
        agent = await ann.post("/agents", {"name": f"of {mine}", "provider_id": mine})
        room = await ann.post("/chat-rooms", {"title": "t", "task": "t"})
        seats = f"/chat-rooms/{room['id']}/agents"
        seat = await ann.post(seats, {"agent_id": agent["id"], "model": "gpt-4.1-mini"})
        wrong = {"provider_id": mine, "model": "gpt-4.1-mimi"}
        refusals: dict[str, tuple[str, str, Json]] = {
            "$.default_model": ("PUT", f"/providers/{mine}", {"default_model": wrong["model"]}),
            "$.model": ("PUT", f"/agents/{agent['id']}", wrong),
            "$.fallbacks[0].model": ("POST", "/agents", {"name": "falls", "fallbacks": [wrong]}),
            "$.policy.model": (
                "PUT",
                f"/chat-rooms/{room['id']}",
                {"policy": {"name": "selector", **wrong}},
            ),
        }
        for field, (method, path, body) in refusals.items():
            await assert_unlisted(await ann.ask(method, path, body), field)
        for body in (wrong, {"model": wrong["model"]}):
            await assert_unlisted(await ann.ask("PUT", f"{seats}/{seat['id']}", body), "$.model")
        of_agent = {"agent_id": agent["id"], "name": "second", "model": wrong["model"]}
        await assert_unlisted(await ann.ask("POST", seats, of_agent), "$.model")
        document = {"version": 1, "name": "of a file", "fallbacks": [named], "tools": ["fly"], **named}
        refused = await ann.ask("POST", "/agents/import", document)
        assert set(refused.json()["detail"]["fields"]) == {"$.model", "$.fallbacks[0].model", "$.tools"}
        for field in ("$.model", "$.fallbacks[0].model"):
            await assert_unlisted(refused, field)


async def assert_unlisted(response: httpx.Response, field: str) -> None:
    assert response.status_code == 400, response.text
    (told,) = [text for name, text in response.json()["detail"]["fields"].items() if name == field]
    assert "has no model 'gpt-4.1-mimi'; it has gpt-4.1-mini" in told


async def test_a_turn_whose_model_is_not_listed_says_so_and_asks_no_provider(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(ONE_MODEL) as model, AsyncApiClient(server.url) as ann:
        mine = await ann.connect(model.url)
        seat = {"name": "Ida", "provider_id": mine, "model": "gpt-4.1-mimi"}
        room = await ann.post("/chat-rooms", {"title": "t", "task": "t", "agents": [seat]})
        agent = await ann.post("/agents", {**seat, "name": f"Ida of {mine}"})
        step = {"id": "one", "name": "one", "goal": "g"}
        task = await ann.post("/tasks", {"name": "t", "goal": "g", "agent_id": agent["id"], "steps": [step]})
        await ann.get(f"/providers/{mine}/models")
        for path in (f"/chat-rooms/{room['id']}/start", f"/tasks/{task['id']}/execute"):
            response = await ann.ask("POST", path, headers={"accept": "application/json"})
            assert response.status_code == 202, response.text
            run_id = response.json()["data"]["id"]
            await ann.follow_all(run_id)
            events = await ann.ask("GET", f"/runs/{run_id}/events", headers={"accept": "application/json"})
            assert "has no model 'gpt-4.1-mimi'; it has gpt-4.1-mini" in events.text
        assert [request.method for request in model.requests] == ["GET"]
