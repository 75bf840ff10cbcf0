"""What a plan may cost: tokens, money and time of its steps, from the user's earlier steps or an assumption.

`docs/agents/tasks.md` defines each figure. The cost of planning itself is not part of it.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.features.tasks.graph import TaskGraph, TaskStepStatus
from luxx.features.tasks.models import NewTaskStep, TaskRow, TaskStepRow
from luxx.wire.orchestration_event import EstimateKind, PlanEstimate
from luxx.wire.turn import Usage

MAX_MEASURED = 100
"""The newest completed steps of a user that are measured."""

MIN_MEASURED = 5
"""With fewer completed steps, a step is assumed to use the tokens below, and no time is given."""

ASSUMED_PROMPT_TOKENS, ASSUMED_COMPLETION_TOKENS = 6_000, 1_000
"""A step of two or three model calls with a few tools, each of which reads the results of other steps."""

TOKENS_OF_PRICE = 1_000_000

_usage = msgspec.json.Decoder(Usage)


class Price(msgspec.Struct, frozen=True, array_like=True):
    """US dollars per million tokens."""

    input: float
    output: float


class EstimateBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before a plan is drawn. `measured`: the number of steps behind the means.

    `prices` are those of the models of agents by the agents' ids, 0: of steps without an agent; models
    without a known price are left out. `slots`: the steps that run at the same time.
    """

    measured: int = 0
    prompt_tokens: float = ASSUMED_PROMPT_TOKENS
    completion_tokens: float = ASSUMED_COMPLETION_TOKENS
    seconds: float | None = None
    prices: dict[int, Price] = {}
    slots: int = 5


def read_basis(session: Session, user_id: int, prices: dict[int, Price], slots: int) -> EstimateBasis:
    """The basis of estimates for this user."""
    query = (
        select(TaskStepRow.usage, TaskStepRow.duration_ms)
        .join(TaskRow, TaskRow.id == TaskStepRow.task_id)
        .where(TaskRow.user_id == user_id, TaskStepRow.status == TaskStepStatus.COMPLETED.value)
        .order_by(TaskStepRow.finished_at.desc())
        .limit(MAX_MEASURED)
    )
    rows = session.execute(query).all()
    usages = [_usage.decode(row.usage) for row in rows]
    if len(rows) < MIN_MEASURED:
        return EstimateBasis(prices=prices, slots=slots)
    count = len(rows)
    return EstimateBasis(
        measured=count,
        prompt_tokens=sum(one.prompt_tokens for one in usages) / count,
        completion_tokens=sum(one.completion_tokens for one in usages) / count,
        seconds=sum(row.duration_ms or 0 for row in rows) / count / 1000,
        prices=prices,
        slots=slots,
    )


def estimate_of(basis: EstimateBasis, steps: Sequence[NewTaskStep], graph: TaskGraph) -> PlanEstimate:
    """What these steps of a valid graph may cost."""
    result_turns = int(len(steps) > 1)
    turns = len(steps) + result_turns
    by_agent = Counter(step.agent_id or 0 for step in steps)
    by_agent[0] += result_turns
    cost: float | None = 0.0
    for agent_id, count in by_agent.items():
        price = basis.prices.get(agent_id)
        if count and price is None:
            cost = None
        elif cost is not None and price is not None:
            tokens = basis.prompt_tokens * price.input + basis.completion_tokens * price.output
            cost += count * tokens / TOKENS_OF_PRICE
    seconds = None
    if basis.seconds is not None:
        seconds = round((_rounds(graph, basis.slots) + result_turns) * basis.seconds, 1)
    return PlanEstimate(
        turns=turns,
        prompt_tokens=round(turns * basis.prompt_tokens),
        completion_tokens=round(turns * basis.completion_tokens),
        cost=None if cost is None else round(cost, 6),
        seconds=seconds,
        basis=EstimateKind.MEASURED if basis.measured else EstimateKind.ASSUMED,
        measured_steps=basis.measured,
    )


def _rounds(graph: TaskGraph, slots: int) -> int:
    """How many steps run one after another, if all take equally long."""
    statuses = {step.id: TaskStepStatus.PENDING for step in graph.steps}
    rounds = 0
    while ready := graph.ready(statuses)[:slots]:
        statuses |= dict.fromkeys(ready, TaskStepStatus.COMPLETED)
        rounds += 1
    return rounds
