"""The skill that manages tasks: which messages have its tools, and that it works in English and Chinese."""

from collections.abc import Iterator

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Finish, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient

TASK = {"name": "Bank", "goal": "Call the bank", "due_at": "2100-01-01T15:00:00Z"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("task-manager")
    with ServerProcess(folder, LUXX_SKILLS__DIRECTORIES="[builtin]") as started_server:
        yield started_server


def script() -> Script:
    """A model that activates the skill, creates the task, and then says so."""
    skill = Call(name="activate_skill", arguments={"name": "task_manager"}, id="call-1")
    create = Call(name="task_create", arguments=TASK, id="call-2")
    return Script(
        rules=[
            Rule(
                when=When(user="tomorrow 3 pm", has_tool_result=False),
                reply=[skill, Finish(reason="tool_calls")],
                times=1,
            ),
            Rule(when=When(user="tomorrow 3 pm"), reply=[create, Finish(reason="tool_calls")], times=1),
            Rule(reply=[Text(text="Done."), Finish()]),
        ]
    )


async def test_only_messages_that_ask_for_tasks_have_their_tools(server: ServerProcess) -> None:
    async with ScriptedProvider(script()) as model, AsyncApiClient(server.url) as ann:
        # The script reads the last words of a person, which a suggestion would follow.
        await ann.ask("PUT", "/settings", {"routing": "off"})

        async def offered(conversation: str, content: str, **more: list[str]) -> bool:
            """Whether the first request for the answer to this message had the tools of tasks."""
            before = len(model.requests)
            await ann.post("/messages", {"conversation_id": conversation, "content": content, **more})
            tools = {tool["function"]["name"] for tool in model.requests[before].json.get("tools", [])}
            assert "file_read" in tools
            return "task_create" in tools

        about_tasks = await ann.conversation(model.url)
        assert not await offered(about_tasks, "What is the weather like in Prague?")
        assert await offered(about_tasks, "Create a task tomorrow 3 pm: call the bank")
        [task] = (await ann.get("/tasks"))["items"]
        assert (task["name"], task["due_at"]) == ("Bank", "2100-01-01T15:00:00Z")
        assert await offered(about_tasks, "Thank you."), "the prompts of a conversation begin the same"
        named = await ann.conversation(model.url)
        assert await offered(named, "The bank, please.", skills=["task-manager"])
        chinese = await ann.conversation(model.url)
        assert await offered(chinese, "帮我创建任务：明天给银行打电话")
        for other in ("Translate this text into French.", "把这段话翻译成法语"):
            assert not await offered(await ann.conversation(model.url), other)
