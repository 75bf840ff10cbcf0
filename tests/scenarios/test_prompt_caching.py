"""The prompt cache of a provider: each request reads from it what the request before it wrote.

The scripted provider counts like Anthropic: it caches up to the marks of a request, at most four, and looks
for a cached beginning only in the 20 blocks before a mark.
"""

from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from luxx.providers.scripted.http import parse_request
from luxx.providers.scripted.prompt_cache import MAX_MARKS, PromptCache
from scenarios.client import AsyncApiClient
from scenarios.rooms import run_to_the_end
from scenarios.test_tasks import execute, step

MANY = 24
"""Calls in one answer: more blocks than a cache looks back."""


def script(*rules: Rule) -> Script:
    return Script(rules=[*rules], caches=True)


def eval_calls(count: int) -> list[Any]:
    return [
        Call(name="python_eval", arguments={"expression": f"{n} + 1"}, id=f"call_{n}") for n in range(count)
    ]


async def anthropic(ann: AsyncApiClient, url: str) -> int:
    body = {"name": url, "provider_type": "anthropic", "base_url": url, "default_model": "scripted"}
    return (await ann.post("/providers", body))["id"]


def uses(model: ScriptedProvider) -> list[tuple[int, int]]:
    """For each request, the tokens it read from the cache, and those that the marks before it had covered."""
    cache, covered, counted = PromptCache(), 0, list[tuple[int, int]]()
    for received in model.requests:
        request = parse_request(received.method, received.path, received.body)
        assert request is not None
        use = cache.use(request, received.body)
        assert use.marks <= MAX_MARKS
        counted.append((use.read, covered))
        covered = use.read + use.written
    return counted


async def test_each_request_of_a_conversation_reads_what_the_one_before_wrote(server: ServerProcess) -> None:
    rules = [
        Rule(when=When(user="first", has_tool_result=False), reply=eval_calls(MANY)),
        Rule(when=When(user="first", has_tool_result=True), reply=[Text(text="Counted.")]),
        Rule(when=When(user="second", has_tool_result=False), reply=eval_calls(2)),
        Rule(when=When(user="second", has_tool_result=True), reply=[Text(text="Counted again.")]),
    ]
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await anthropic(ann, model.url)
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        for content in ("first", "second"):
            async with ann.send_and_follow(conversation, content) as frames:
                screen = await frames.to_the_end()
        run = await ann.run(screen.run_id)
        counted = uses(model)
        assert len(counted) == 4
        assert all(read == covered and (read or at == 0) for at, (read, covered) in enumerate(counted))
        # The run reports what the provider counted.
        assert run["usage"]["cached_tokens"] == counted[2][0] + counted[3][0]
        assert run["usage"]["cache_write_tokens"] > 0
        assert run["usage"]["prompt_tokens"] > run["usage"]["cached_tokens"]


async def project_skill(ann: AsyncApiClient, project: str, name: str, **more: Any) -> str:
    body = {"name": name, "description": f"Is for {name}.", "scope": "project", "content": f"Do {name}."}
    return (await ann.post("/skills", {**body, "project_id": project, **more}))["id"]


async def agent_of(ann: AsyncApiClient, project: str, name: str) -> int:
    body = {"name": name, "description": f"Knows {name}.", "project_id": project}
    return (await ann.post("/agents", body))["id"]


async def test_a_conversation_keeps_the_list_of_skills_and_agents_of_its_first_run(
    server: ServerProcess,
) -> None:
    tried = [
        Call(name="activate_skill", arguments={"name": "minutes"}, id="gone"),
        Call(name="delegate", arguments={"task": "Ask.", "agent": "Librarian"}, id="off"),
        Call(name="activate_skill", arguments={"name": "letters"}, id="edited"),
    ]
    rules = [
        Rule(
            when=When(user="first", call=1),
            reply=[Call(name="activate_skill", arguments={"name": "letters"})],
        ),
        Rule(when=When(user="second"), reply=[*tried], times=1),
        Rule(reply=[Text(text="Done.")]),
    ]
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(server.url) as ann:
        project = (await ann.post("/projects", {"name": "Mail"}))["id"]
        edited = await project_skill(ann, project, "letters")
        removed = await project_skill(ann, project, "minutes")
        disabled = await agent_of(ann, project, "Librarian")
        body = {
            "provider_id": await anthropic(ann, model.url),
            "project_id": project,
            "system_prompt": "Write as everybody here does. " * 400,
        }
        conversation = (await ann.post("/conversations", body))["id"]

        async def say(content: str, to: str = conversation) -> None:
            async with ann.send_and_follow(to, content) as frames:
                await frames.to_the_end()

        await say("first")
        change = {"description": "Is for letters to friends."}
        assert (await ann.ask("PUT", f"/skills/{edited}", change)).is_success
        assert (await ann.ask("DELETE", f"/skills/{removed}")).is_success
        assert (await ann.ask("PATCH", f"/agents/{disabled}/enable", {"enabled": False})).is_success
        await agent_of(ann, project, "Postman")
        await project_skill(ann, project, "stamps")
        await say("second")
        await say("third")
        requests = [received.json for received in model.requests]
        assert len(requests) == 5
        assert all(each["tools"] == requests[0]["tools"] for each in requests)
        assert all(each["system"] == requests[0]["system"] for each in requests)
        assert "- letters: Is for letters.\n- minutes" in str(requests[0]["system"]).replace("\\n", "\n")
        assert "- Librarian: Knows Librarian." in str(requests[0]["system"])
        told = (
            "Since the list above was made: changed skill letters: Is for letters to friends.; new skill "
            "stamps: Is for stamps.; the skill minutes cannot be used any more; new agent Postman: Knows "
            "Postman.; the agent Librarian cannot be used any more"
        )
        assert [told in str(each["messages"][-1]) for each in requests] == [False] * 2 + [True] * 3
        counted = uses(model)
        assert all(read == covered and (read or at == 0) for at, (read, covered) in enumerate(counted))
        assert all(each.cached_tokens >= 0.95 * each.tokens for each in model.requests[1:])
        results = await results_of(ann, conversation)
        assert [results[call]["success"] for call in ("gone", "off", "edited")] == [False, False, True]
        assert "Do letters." in results["edited"]["content"]
        # What is begun now has what holds now.
        await say("first", (await ann.post("/conversations", body))["id"])
        new = model.requests[-1].json["system"]
        assert "- letters: Is for letters to friends." in str(new)
        assert "Librarian" not in str(new)


async def results_of(ann: AsyncApiClient, conversation: str) -> dict[str, Any]:
    """The result of each call in a conversation, by its id."""
    steps = [step for message in await ann.messages(conversation) for step in message.get("steps", ())]
    return {step["id_ref"]: step for step in steps if step["type"] == "tool_result"}


async def test_the_last_call_which_may_call_no_tool_reads_the_cache(server: ServerProcess) -> None:
    """The server allows three iterations with tools."""
    rules = [Rule(reply=[Text(text="Again. "), each], times=1) for each in eval_calls(3)]
    last = Rule(reply=[Text(text="That is all.")])
    async with ScriptedProvider(script(*rules, last)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await anthropic(ann, model.url)
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        async with ann.send_and_follow(conversation, "Count") as frames:
            await frames.to_the_end()
        assert model.requests[3].json["tool_choice"] == {"type": "none"}
        assert model.requests[3].json["tools"] == model.requests[2].json["tools"]
        # The choice of tools belongs to the messages, so only tools and system come from the cache.
        assert uses(model)[3][0] > 0


async def test_a_seat_of_a_room_reads_its_earlier_turns_from_the_cache(server: ServerProcess) -> None:
    rule = Rule(reply=[Text(text="I think so")])
    async with ScriptedProvider(script(rule)) as model, AsyncApiClient(server.url) as ann:
        # The address is allowed and connected once; the room then has the Anthropic provider.
        provider_id = await anthropic(ann, model.url)
        for names in (("Anna", "Ben"), ("Cleo",)):
            del model.requests[:]
            seats = [{"name": name, "role": "speaks", "provider_id": provider_id} for name in names]
            room = {"title": "Talk", "task": "Find it out", "agents": seats, "max_rounds": 3}
            room_id = (await ann.post("/chat-rooms", room))["id"]
            await run_to_the_end(ann, room_id)
            by_seat = [model.requests[at :: len(names)] for at in range(len(names))]
            for requests in by_seat:
                model.requests[:] = requests
                counted = uses(model)
                assert len(counted) == 3
                assert all(
                    read == covered and (read or at == 0) for at, (read, covered) in enumerate(counted)
                )


async def test_the_steps_of_a_task_share_tools_and_system_in_the_cache(server: ServerProcess) -> None:
    rules = [Rule(reply=[Text(text="Done.")])]
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await anthropic(ann, model.url)
        body = {
            "name": "Report",
            "goal": "Write",
            "provider_id": provider_id,
            "steps": [step("a"), step("b", "a")],
        }
        task_id = (await ann.post("/tasks", body))["id"]
        await execute(ann, task_id)
        assert len(model.requests) >= 2
        first, second = uses(model)[:2]
        assert (first[0], second[0] > 0) == (0, True)


async def test_a_server_that_refuses_marks_gets_none(server: ServerProcess) -> None:
    refusal = "system.0.cache_control: Extra inputs are not permitted"
    rules = [
        Rule(when=When(call=1), status=400, message=refusal),
        Rule(reply=[Text(text="Hello"), Counts(prompt=5, completion=1)]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await anthropic(ann, model.url)
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        for content in ("one", "two"):
            async with ann.send_and_follow(conversation, content) as frames:
                screen = await frames.to_the_end()
            assert screen.text == "Hello"
        marked = [b"cache_control" in received.body for received in model.requests]
        assert marked == [True, False, False]
