"""Requests that older versions stored say in other fields what a run was asked; their runs go on."""

import json
from pathlib import Path
from typing import Any

import pytest
from runs.test_waiting import ASK, OPEN
from sqlalchemy import select
from sqlalchemy.orm import Session

from engine.in_process_cluster import InProcessCluster, ended, until
from luxx.domain.context.messages import PastMessage
from luxx.domain.conversations.views import ConversationChange
from luxx.providers.scripted import Call, Finish, Rule, Script, Text, When
from luxx.runs.models import RunRow
from luxx.runs.options import NewMessage
from luxx.runs.questions import GivenAnswer
from luxx.runs.turn.run_rows import decode_request
from luxx.runs.turn.state import GivenPrompt, Origin
from luxx.wire.message import UserContent
from luxx.wire.run import Delegated, InConversation, Invocation, OrchestratedTurn, RunStatus
from luxx.wire.tool import Narrowing, ToolSpec
from luxx.wire.turn import steps_text

CHILD = "the hand"
MESSAGE_ID = "019e0000-0000-7000-8000-000000000001"
STORED = (
    '{"parent_id":"%s","provider_id":3,"provider_name":"Scripted","model":"scripted","agent_id":7,'
    '"is_invocation":%s,"max_iterations":null,"skills":null,"fallbacks":[],"tools":["delegate"],'
    '"takes_images":false,"thinking_enabled":false,"temperature":null,"max_tokens":null,'
    '"system_prompt":"Be brief.","response_schema":null,"when_asked":"wait","delegated":%s,"stop":[],'
    '"given":%s}'
)
"""A row of the version before requests had an `origin`."""

DELEGATED = (
    '{"call_id":"call_0","task":"Count.","depth":1,"root_run_id":"root","most_calls":4,'
    '"tainted_by":"web_fetch","narrowed":[{"by":"","entries":["file_read"]}],"agent_ids":[7]}'
)
GIVEN = (
    '{"past":[{"user":{"text":"Hi","attachments":[]},"images":{},"steps":[],"replay":[],"context":null}],'
    '"tools":[{"name":"own","description":"","parameters":{}}],"tool_choice":null,'
    '"parallel_tool_calls":null}'
)


def delegated(message_id: str | None, *, is_of_given: bool = False) -> Delegated:
    return Delegated(
        message_id=message_id, is_of_given=is_of_given, call_id="call_0", task="Count.", depth=1,
        root_run_id="root", most_calls=4, tainted_by="web_fetch",
        narrowed=(Narrowing(by="", entries=("file_read",)),), agent_ids=(7,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "origin"),
    [
        (STORED % (MESSAGE_ID, "false", "null", "null"), InConversation(message_id=MESSAGE_ID)),
        (STORED % (MESSAGE_ID, "true", "null", "null"), Invocation(message_id=MESSAGE_ID)),
        (STORED % (MESSAGE_ID, "false", DELEGATED, "null"), delegated(MESSAGE_ID)),
        (STORED % ("", "false", DELEGATED, "null"), delegated(None)),
        (STORED % ("", "false", DELEGATED, GIVEN), delegated(None, is_of_given=True)),
        (
            STORED % ("", "false", "null", GIVEN),
            GivenPrompt(
                past=[PastMessage(user=UserContent(text="Hi"))],
                tools=[ToolSpec(name="own", description="", parameters={})],
            ),
        ),
        (STORED % ("", "false", "null", "null"), OrchestratedTurn()),
    ],
    ids=[
        "conversation",
        "invocation",
        "subagent",
        "subagent of a room",
        "subagent of a call",
        "call",
        "ended",
    ],
)
def test_an_older_request_says_what_its_run_was_asked(stored: str, origin: Origin) -> None:
    request = decode_request(stored)

    assert request.origin == origin
    assert (request.provider_id, request.agent_id, request.tools) == (3, 7, ["delegate"])


def as_older(run: RunRow) -> str:
    """The request of a run in the form of the older version."""
    values: dict[str, Any] = json.loads(run.request)
    origin = values.pop("origin")
    kind = origin.pop("type")
    values |= {"parent_id": run.question_id, "is_invocation": False, "delegated": None, "given": None}
    if kind == "delegated":
        values["delegated"] = {key: origin[key] for key in json.loads(DELEGATED)}
    return json.dumps(values)


async def test_runs_that_an_older_version_left_waiting_go_on_after_the_answer(tmp_path: Path) -> None:
    call = Call(name="delegate", arguments={"task": "Ask whether.", "system_prompt": CHILD})
    rules = [
        Rule(name="sub asks", when=When(system=CHILD, has_tool_result=False), reply=[ASK]),
        Rule(name="sub ends", when=When(system=CHILD), reply=[Text(text="Granted."), Finish()]),
        Rule(name="delegates", when=When(has_tool_result=False), reply=[call]),
        Rule(name="ends", when=When(has_tool_result=True), reply=[Text(text="It was granted."), Finish()]),
    ]
    async with InProcessCluster(tmp_path, f"sqlite:///{tmp_path}/t.db", Script(rules=rules)) as cluster:
        services = await cluster.services()
        ann = await cluster.add_user(services, "ann")
        talk = await services.conversations.create(ann, ConversationChange())
        tools = ["delegate", "ask_decision"]
        lead = await services.chats.send(ann, NewMessage(conversation_id=talk.id, text="go", tools=tools))

        async def is_asked() -> bool:
            return (await services.questions.list_page(ann, OPEN, page=1, page_size=1))[1] == 1

        await until(is_asked)
        (question,), _total = await services.questions.list_page(ann, OPEN, page=1, page_size=1)
        await cluster.stop(services)
        services = await cluster.services()
        await services.store.write(store_as_older)
        await services.questions.answer(ann, question.run_id, question.id, GivenAnswer(answer="yes"))

        assert (await ended(services, ann, lead)).status == RunStatus.COMPLETED
        assert steps_text((await services.chats.answer(ann, lead)).steps) == "It was granted."


def store_as_older(session: Session) -> None:
    """Gives the rows of all runs the form of the older version."""
    rows = session.scalars(select(RunRow).order_by(RunRow.id)).all()
    assert len(rows) == 2
    for row in rows:
        row.request = as_older(row)
