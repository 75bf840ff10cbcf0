"""What a run changes in the steps of a pattern, without a model: what a person decided and corrected, and a
faster order of tools.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from luxx.features.patterns.models import PatternRow
from luxx.features.patterns.rows import note_change
from luxx.features.patterns.service import (
    MAX_CHAINS,
    MAX_POINTS,
    MAX_STEP_BYTES,
    MAX_STEPS,
    PatternStep,
    chains_of,
    steps_of,
)
from luxx.features.patterns.traces import PersonsWord, Trace

FASTER = 0.8
"""The share of the average time below which a run is much faster."""

_encode = msgspec.json.Encoder().encode


def refine(session: Session, row: PatternRow, trace: Trace, now: datetime) -> None:
    """Changes a pattern by a run of its owner that counted for it, with a line of the history. An order of
    tools with which the run was much faster than the average becomes the first one.

    One that is shared stays as people wrote it: otherwise a run of one person would change what others get.
    """
    if row.is_shared:
        return
    steps = steps_of(row.steps)
    for word in (*trace.decisions, *trace.corrections):
        steps = with_word(steps, word)
    chains, chain = chains_of(row.tool_chains), [call.tool for call in trace.calls][:MAX_STEPS]
    if chain and 0 < trace.duration_ms < FASTER * row.avg_execution_time_ms:
        chains = [chain, *(one for one in chains if one != chain)][:MAX_CHAINS]
    after: dict[str, Any] = {"steps": steps, "tool_chains": chains}
    before: dict[str, Any] = {"steps": steps_of(row.steps), "tool_chains": chains_of(row.tool_chains)}
    changed = {name: value for name, value in after.items() if value != before[name]}
    if not changed:
        return
    note_change(session, row, {name: before[name] for name in changed}, None, now)
    for name, value in changed.items():
        setattr(row, name, _encode(value).decode())


def with_word(steps: Sequence[PatternStep], word: PersonsWord) -> list[PatternStep]:
    """The steps with what a person said, in the step that calls the tool before it, else in the first one.

    Another answer to the same question takes the place of the one before; the oldest makes room for the
    newest. A step that would be too large stays as it is.
    """
    at = next((index for index, step in enumerate(steps) if word.near in step.tools), 0)
    points = steps[at].decision_points
    if word.text in points:
        return list(steps)
    others = [one for one in points if not (word.asked and one.startswith(f"{word.asked}: "))]
    changed = msgspec.structs.replace(steps[at], decision_points=[*others, word.text][-MAX_POINTS:])
    if len(_encode(changed)) > MAX_STEP_BYTES:
        return list(steps)
    return [*steps[:at], changed, *steps[at + 1 :]]
