"""LangGraph: the discussion, and the graph of steps without a model, each in memory and with SQLite.

Run as `python -m tests.bench.peer_langgraph URL TURNS MARKER`; prints CPU ms of a turn and of a step as JSON.
"""

import asyncio
import json
import operator
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph, add_messages

from tests.bench.discussion import SEATS, TASK, arguments, graph, system_prompt, timed

GRAPHS = 20
"""Executions of the graph of steps that are measured together."""


class Discussion(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]


class Outputs(TypedDict):
    outputs: Annotated[dict[str, str], operator.or_]


def seat_node(model: ChatOpenAI, name: str, marker: str) -> Any:
    """The turn of a participant."""
    system = SystemMessage(system_prompt(name, marker))

    async def speak(state: Discussion) -> dict[str, list[AIMessage]]:
        seen = [
            HumanMessage(f"[{one.name}] {one.content}")
            if isinstance(one, AIMessage) and one.name != name
            else one
            for one in state["messages"]
        ]
        answer = await model.ainvoke([system, *seen])
        return {"messages": [AIMessage(answer.content, name=name)]}

    return speak


def discussion(url: str, turns: int, marker: str) -> StateGraph[Discussion]:
    """The participants one after the other, until so many messages were said."""
    model = ChatOpenAI(model="bench-model", base_url=url, api_key="none", streaming=True, stream_usage=True)
    builder = StateGraph(Discussion)
    for name in SEATS:
        builder.add_node(name, seat_node(model, name, marker))
    builder.add_edge(START, SEATS[0])
    for name, following in zip(SEATS, (*SEATS[1:], SEATS[0]), strict=True):
        builder.add_conditional_edges(
            name,
            lambda state, following=following: END if len(state["messages"]) > turns else following,
            [following, END],
        )
    return builder


def steps() -> StateGraph[Outputs]:
    """The graph of steps; each joins the outputs that it needs."""
    builder = StateGraph(Outputs)
    needed = {one for needs in graph().values() for one in needs}
    for step_id, needs in graph().items():

        async def work(state: Outputs, step_id: str = step_id, needs: Any = needs) -> dict[str, Any]:
            return {"outputs": {step_id: f"{step_id} after {[len(state['outputs'][one]) for one in needs]}"}}

        builder.add_node(step_id, work)
        builder.add_edge([*needs] if needs else START, step_id)
        if step_id not in needed:
            builder.add_edge(step_id, END)
    return builder


async def talk(app: Any, thread: str, turns: int) -> int:
    """A discussion whose tokens are streamed. Returns the characters of its texts."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": turns + 10}
    said: list[BaseMessage] = []
    async for mode, part in app.astream(
        {"messages": [HumanMessage(TASK)]}, config, stream_mode=["messages", "values"]
    ):
        if mode == "values":
            said = part["messages"][1:]
    return sum(len(one.text) for one in said)


async def execute(app: Any, thread: str) -> None:
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 100}
    state = await app.ainvoke({"outputs": {}}, config)
    if len(state["outputs"]) != len(graph()):
        raise RuntimeError(f"{len(state['outputs'])} steps of {len(graph())} were executed")


async def main(url: str, turns: int, marker: str) -> None:
    """Warms each up once, then measures them."""
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="luxx-bench-langgraph-") as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / "checkpoints.db")) as saver:
            for name, checkpointer in (("", None), ("_sqlite", saver)):
                app: Any = discussion(url, turns, marker).compile(checkpointer=checkpointer)
                await talk(app, "warm", turns)
                with timed(measured, f"turn{name}", turns):
                    measured["characters"] = await talk(app, "measured", turns)
                app = steps().compile(checkpointer=checkpointer)
                await execute(app, "warm steps")
                with timed(measured, f"step{name}", len(graph()) * GRAPHS):
                    for number in range(GRAPHS):
                        await execute(app, f"steps {number}")
    print(json.dumps(measured))


if __name__ == "__main__":
    asyncio.run(main(*arguments()))
