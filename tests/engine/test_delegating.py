"""Runs that delegate, in processes that end: the limit on subagents, and the state after a handover."""

import asyncio
from pathlib import Path

from sqlalchemy import update

from engine.in_process_cluster import InProcessCluster, ended, types_of, until
from luxx.domain.conversations.views import ConversationChange
from luxx.infra.clock import new_id, utc_now
from luxx.providers.scripted import Call, Gate, Rule, Script, Text, When
from luxx.runs.models import RunRow
from luxx.runs.options import NewMessage
from luxx.wire.run import RunStatus

CHILD = "the hand"
STRICT = """---
name: strict
description: Takes all tools away.
allowed-tools: []
---
Do it without tools.
"""


def delegate(call_id: str) -> Call:
    return Call(name="delegate", arguments={"task": f"Do {call_id}.", "system_prompt": CHILD}, id=call_id)


async def test_a_run_has_no_more_subagents_than_allowed(tmp_path: Path) -> None:
    script = Script(
        rules=[
            Rule(name="child", when=When(system=CHILD), reply=[Text(text="Yes.")]),
            Rule(when=When(has_tool_result=False), reply=[delegate("one"), delegate("two")]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Done.")]),
        ]
    )
    url = f"sqlite:///{tmp_path}/t.db"
    async with InProcessCluster(tmp_path, url, script, subagents_per_run=1) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        talk = await services.conversations.create(ann, ConversationChange())
        lead = await services.chats.send(
            ann, NewMessage(conversation_id=talk.id, text="go", tools=["delegate"])
        )
        assert (await ended(services, ann, lead)).status == RunStatus.COMPLETED
        assert len([request for request in cluster.model.requests if request.rule == "child"]) == 1
        (calls, _total) = await services.replay.list_calls(
            ann, tool="delegate", run_id=None, page=1, page_size=9
        )
        refused = [
            str(call.tool_output.error) for call in calls if call.status == "failed" and call.tool_output
        ]
        assert len(refused) == 1
        assert "as many as this server allows" in refused[0]


async def test_a_skill_activated_in_the_same_answer_removes_no_subagent_at_a_handover(tmp_path: Path) -> None:
    activate = Call(name="activate_skill", arguments={"name": "strict"}, id="skill")
    script = Script(
        rules=[
            Rule(when=When(system=CHILD, call=1), reply=[Text(text="So "), Gate(name="gate")]),
            Rule(when=When(system=CHILD), reply=[Text(text="Whole.")]),
            Rule(when=When(has_tool_result=False), reply=[activate, delegate("sub")]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Done.")]),
        ]
    )
    (tmp_path / "data" / "skills" / "strict").mkdir(parents=True)
    (tmp_path / "data" / "skills" / "strict" / "SKILL.md").write_text(STRICT, "utf-8")
    async with InProcessCluster(tmp_path, f"sqlite:///{tmp_path}/t.db", script) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        talk = await services.conversations.create(ann, ConversationChange())
        tools = ["activate_skill", "delegate"]
        lead = await services.chats.send(ann, NewMessage(conversation_id=talk.id, text="go", tools=tools))
        await cluster.model.reached("gate")

        async def is_active() -> bool:
            return "skill_activated" in await types_of(services, ann, lead)

        await until(is_active)
        await cluster.kill(services)
        services = await cluster.services()
        assert (await ended(services, ann, lead)).status == RunStatus.COMPLETED
        (calls, _total) = await services.replay.list_calls(
            ann, tool="delegate", run_id=None, page=1, page_size=9
        )
        assert [call.status for call in calls] == ["success"]


async def test_stopping_a_run_waits_for_its_subagents(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    async with InProcessCluster(tmp_path, url, Script(rules=[Rule(reply=[Text(text="Yes.")])])) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        lead = await ended(services, ann, await cluster.send(services, ann))
        below = RunRow(
            id=new_id(), user_id=ann.user_id, tenant_id=1, kind="chat", subject_id=lead.subject_id,
            parent_run_id=lead.id, status="waiting", request="{}", created_at=utc_now(),
        )  # fmt: skip
        its_end = update(RunRow).where(RunRow.parent_run_id == lead.id).values(status="cancelled")
        await services.store.write(lambda session: session.add(below))
        stopping = asyncio.create_task(services.runs.stop(ann, lead.id))
        await asyncio.wait({stopping}, timeout=0.3)
        assert not stopping.done()
        await services.store.write(lambda session: session.execute(its_end))
        async with asyncio.timeout(5):
            await stopping
