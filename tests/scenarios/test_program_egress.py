"""A program that reaches a listed host taints its run, and the audit log has the user and the call."""

from pathlib import Path

import pytest
from api.server_process import ServerProcess
from web.site import Site, page, site

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import asks, open_questions, results


def goes_to(*urls: str) -> str:
    """A program that requests these URLs through the proxy, whatever `NO_PROXY` says."""
    return f"""
import os, urllib.request
os.environ.pop('NO_PROXY', None), os.environ.pop('no_proxy', None)
for url in {list(urls)!r}:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except OSError as error:
        print(error)
"""


def has_egress(result: Json) -> bool:
    return (result["data"] or {}).get("network", {}).get("problem", "no sandbox") is None


def environment(started_site: Site) -> dict[str, str]:
    entry = f"127.0.0.1:{started_site.port}"
    return {"LUXX_TOOLS__NETWORK_ALLOW": entry, "LUXX_TOOLS__WEB_ALLOW_PRIVATE": entry}


async def test_a_program_with_egress_taints_its_run_and_is_in_the_audit_log(tmp_path: Path) -> None:

    with site() as started_site, site() as other:
        started_site.routes["*"] = page("hello", "text/plain")
        with ServerProcess(tmp_path, **environment(started_site)) as server:
            urls = [f"http://127.0.0.1:{each.port}" for each in (started_site, other)]
            url = server.url
            open_to = urls[0]
            closed = urls[1]
            there = Call(
                name="python_execute",
                arguments={"code": goes_to(f"{open_to}/a", f"{closed}/b")},
                id="call-out",
            )
            again = Call(name="python_execute", arguments={"code": "print(1)"}, id="call-again")
            script = Script(
                rules=[
                    Rule(when=When(has_tool_result=False), reply=[there, Counts(prompt=5, completion=3)]),
                    Rule(when=When(has_tool_result=True), reply=[again, Counts(prompt=5, completion=3)]),
                ]
            )
            async with ScriptedProvider(script) as model, AsyncApiClient(url) as ann:
                conversation = await ann.conversation(model.url)
                run = await ann.start_run(conversation, tools=True)
                async with ann.follow(run["id"]) as stream:
                    frame = await stream.until("process_step", type="tool_result")
                    result = results({"steps": [frame.step]})[0]
                    if not has_egress(result):
                        await ann.cancel(run["id"])
                        pytest.skip("no sandbox with a way out works here")
                    assert result["data"]["stdout"].startswith("hello\nHTTP Error 403: ")
                    assert frame.step["is_untrusted"] is True
                    # This call was allowed before; after the taint it asks.
                    await stream.until("question_asked")
                (question,) = await open_questions(ann, run["id"])
                assert question["tool"] == "python_execute"
                assert "python_execute has brought untrusted content into this run" in str(question)
                await ann.cancel(run["id"])
                await check_audit_entries(ann, run["id"], open_to, closed)
        assert other.connections == 0


async def check_audit_entries(ann: AsyncApiClient, run_id: str, open_to: str, closed: str) -> None:
    entries = (await ann.get("/admin/audit", action="egress"))["items"]
    entries_by_target = {(entry["target_id"], entry["outcome"]): entry for entry in entries}
    done = entries_by_target[(open_to.removeprefix("http://"), "done")]
    refused = entries_by_target[(closed.removeprefix("http://"), "refused")]
    assert len(entries) == 2
    for one in (done, refused):
        assert (one["target_type"], one["username"]) == ("host", "admin")
        assert one["detail"]["name"] == "python_execute"
        assert (one["detail"]["call_id"], one["detail"]["run_id"]) == ("call-out", run_id)
    assert refused["detail"]["kind"] == "host_not_listed"


async def test_a_program_without_a_list_has_no_network_and_taints_nothing(server: ServerProcess) -> None:
    with site() as started_site:
        code = goes_to(f"http://127.0.0.1:{started_site.port}/")
        call = Call(name="python_execute", arguments={"code": code}, id="call-1")
        async with ScriptedProvider(asks(call)) as model, AsyncApiClient(server.url) as ann:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=True)
            screen = await ann.wait_for_end(run["id"])
            (result,) = results(await ann.answer_shown_by(conversation, screen))
            assert "network" not in (result["data"] or {})
            assert "tainted" not in [frame.event for frame in screen.frames]
        assert started_site.connections == 0
