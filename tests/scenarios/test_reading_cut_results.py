"""The model reads the rest of a cut tool result with result_read, in its own run only."""

import json
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json

ROWS = [{"line": f"{number:05d}", "words": "some words in it, é"} for number in range(3_000)]
LONG = "x" * 5_000 + "middle" + "y" * 5_000


def reads_on(*pages: dict[str, Any], first: list[Call] | None = None) -> Script:
    """Two tools with long output, then calls that read pages of it."""
    big = Call(name="process_data", arguments={"data": ROWS, "operation": "format"}, id="call-big")
    long = Call(name="file_read", arguments={"path": "long.txt"}, id="call-long")
    reading = [Call(name="result_read", arguments=page, id=f"read-{at}") for at, page in enumerate(pages)]
    return Script(
        rules=[
            Rule(
                when=When(has_tool_result=False), reply=[*([big, long] if first is None else first), Counts()]
            ),
            Rule(when=When(has_tool_result=True, call=1), reply=[*reading, Counts()]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Now I know.")]),
        ]
    )


async def run_with_answers(ann: AsyncApiClient, script: Script) -> tuple[Json, dict[str, Json]]:
    """The run, and the results of its tools by their calls."""
    async with ScriptedProvider(script) as model:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=True)
        await ann.wait_for_end(run["id"])
        steps = (await ann.messages(conversation))[-1]["steps"]
        answers = [step for step in steps if step["type"] == "tool_result"]
        return run, {step["id_ref"]: json.loads(step["content"]) for step in answers}


async def test_a_model_reads_the_rest_of_a_cut_result(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await ann.post("/tools/file_write/execute", {"arguments": {"path": "long.txt", "content": LONG}})
        run, answers = await run_with_answers(
            ann,
            reads_on(
                {"ref": "call-big"},
                {"ref": "call-big", "offset": 20_000, "limit": 40_000},
                {"ref": "call-long", "limit": 9_000},
                {"ref": "call-big", "offset": 10_000_000},
                {"ref": "call-none"},
                {"ref": "a\0b"},
            ),
        )
        big, long = answers["call-big"], answers["call-long"]
        first, second, line, beyond, none, odd = (answers[f"read-{at}"] for at in range(6))
        assert 'result_read {"ref": "call-big"' in big["data"]["output_cut"]
        assert 'result_read {"ref": "call-long"' in long["data"]["output_cut"]
        assert "middle" not in long["data"]["content"]
        assert first["error"] is None
        whole = await ann.get(f"/runs/{run['id']}/results/call-big", limit=100_000)
        assert first["data"]["content"] == whole["output"][:20_000]
        assert (first["data"]["next_offset"], first["data"]["truncated"]) == (20_000, True)
        assert first["data"]["total_characters"] == whole["total"]
        assert "read on with offset 20000" in first["data"]["note"]
        piece = second["data"]["content"]
        assert piece == whole["output"][20_000 : 20_000 + len(piece)]
        assert second["data"]["next_offset"] == 20_000 + len(piece) < 60_000
        assert LONG[:8_000] in line["data"]["content"]
        assert "there is none at offset 10,000,000" in beyond["error"]
        assert "no output of this run has this ref" in none["error"]
        assert "no output of this run has this ref" in odd["error"]


async def test_results_of_another_run_cannot_be_read(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await ann.post("/tools/file_write/execute", {"arguments": {"path": "long.txt", "content": LONG}})
        _, mine = await run_with_answers(ann, reads_on({"ref": "call-big"}))
        assert mine["read-0"]["success"] is True
        quiet = [Call(name="file_list", arguments={}, id="call-list")]
        _, other = await run_with_answers(
            ann, reads_on({"ref": "call-big"}, {"ref": "call-list"}, first=quiet)
        )
        assert other["call-list"]["success"] is True
        assert "no output of this run has this ref" in other["read-0"]["error"]
        assert other["read-1"]["data"]["content"].startswith('{"path":"."')


async def test_result_read_is_offered_with_any_listed_tool(server: ServerProcess) -> None:
    long_id = "call-" + "x" * 150

    async with AsyncApiClient(server.url) as ann:
        big = Call(name="process_data", arguments={"data": ROWS, "operation": "format"}, id=long_id)
        async with ScriptedProvider(reads_on({"ref": long_id}, first=[big])) as model:
            for tools, offered in (
                (["process_data"], {"process_data", "result_read"}),
                (["result_read", "file_read"], {"file_read", "result_read"}),
                ([], set[str]()),
            ):
                conversation = await ann.conversation(model.url)
                before = len(model.requests)
                run = await ann.start_run(conversation, tools=tools)
                await ann.wait_for_end(run["id"])
                next_run = [
                    {tool["function"]["name"] for tool in request.json.get("tools", [])}
                    for request in model.requests[before:]
                ]
                assert next_run == [offered] * len(next_run)
                assert next_run
                if tools[:1] == ["process_data"]:
                    steps = (await ann.messages(conversation))[-1]["steps"]
                    answers = [json.loads(step["content"]) for step in steps if step["type"] == "tool_result"]
                    assert f'result_read {{"ref": "{long_id}"' in answers[0]["data"]["output_cut"]
                    assert answers[1]["data"]["offset"] == 0


async def test_a_tool_run_directly_has_no_result_to_read(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        alone = await ann.post("/tools/result_read/execute", {"arguments": {"ref": "call-big"}})
        assert alone["success"] is False
        assert "does not belong to a run" in alone["error"]


async def test_a_cached_result_names_the_run_that_receives_it(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        for call_id in ("call-first", "call-second"):
            big = Call(name="process_data", arguments={"data": ROWS, "operation": "minify"}, id=call_id)
            _, answers = await run_with_answers(
                ann, reads_on({"ref": call_id, "offset": 100_000}, first=[big])
            )
            assert f'result_read {{"ref": "{call_id}"' in answers[call_id]["data"]["output_cut"]
            assert answers["read-0"]["data"]["offset"] == 100_000
