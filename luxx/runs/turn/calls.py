"""The tool calls of a turn in one drive: starts those that may run, runs them at once, and logs the results.

A turn makes it for its first calls, so that a message without tools does not use it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection

from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError
from luxx.infra.store.engine import Store
from luxx.runs.cancel import RunCancelled
from luxx.runs.log.events import LogEntry, store_output
from luxx.runs.log.page_sources import numbered
from luxx.runs.turn.asking import QuestionAsker, needed_answer
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.delegation import Delegator
from luxx.runs.turn.loop_guard import (
    EndedByLoop,
    answer_on,
    corrected,
    detect,
    intervention,
    question_on,
    results_of,
    with_correction,
    with_failure_notes,
)
from luxx.runs.turn.pins import store_pins
from luxx.runs.turn.resources import RunResources
from luxx.runs.turn.rights import (
    UiCommands,
    inherited_taint,
    new_taint,
    root_of_cited,
    skill_entries,
    tainted_by,
)
from luxx.runs.turn.state import TurnState, held_calls, open_calls
from luxx.runs.turn.turn_log import (
    call_of,
    executed_entries,
    full_output_row,
    interrupted_entries,
    refused_calls,
    refused_entries,
    status_entry,
)
from luxx.tools.core import NeedsAnswer, ToolContext, without_numbers
from luxx.tools.history import Executed
from luxx.tools.hooks import ChangeRefused
from luxx.wire.run import LoopChoice, RunPhase, WhenAsked
from luxx.wire.todos import TodoItem
from luxx.wire.tool import ActiveSkill, ToolResult
from luxx.wire.turn import Step, StepStatus
from luxx.wire.turn_event import DoomLoopDetected, PlanUpdated, UiCommand, Warning

_encode = msgspec.json.Encoder().encode

CHANGE_TRIES = 3
"""How often a call may run whose change does not fit what others have stored meanwhile."""

NOT_CHANGED = ToolResult.fail(
    "It was changed by others at the same time, again and again. Read it and try again."
)

CallTasks = dict["asyncio.Task[Executed]", Step]


class ToolCalls:
    """Runs the calls of one drive with these resources."""

    def __init__(self, run: RunContext, resources: RunResources, delegator: Delegator) -> None:
        self._spec = run.spec
        self._log = run.log
        self._signal = run.signal
        self._spending = run.spending
        self._executor = run.services.executor
        self._resources = resources
        self._is_pinned = resources.is_pinned
        self._loops = run.services.config.loops
        self._is_unattended = run.spec.request.when_asked == WhenAsked.DENY
        self._asker = QuestionAsker(run)
        self._delegator = delegator
        self._activated_skills: dict[str, ActiveSkill] = {}
        """Skills that calls of this drive have activated, by call id."""
        self._todos: dict[str, list[TodoItem]] = {}
        """To-do lists that calls of this drive have written, by call id."""
        self._resumed: set[int] = set()
        """Calls that a lost process had begun and whose tools know more."""
        self._ui_commands = UiCommands(run.spec)
        root = root_of_cited(run.spec)
        self._number_pages = without_numbers if root is None else partial(_numbered, run.services.store, root)
        self._last_context: ToolContext | None = None
        self._context: ToolContext | LuxxError | None = None
        """For the calls that this drive has started; permissions and rules were read at their start."""

    async def start(self, state: TurnState, preceding: list[LogEntry], usage: UsageEntry | None) -> None:
        """Logs `preceding`, then the open calls of `state` as running, and reads the user's permissions anew.

        A call that asks a person first stays pending until it is answered. Without calls (the model paused,
        or a crash ended them) the model is called next.
        """
        refused = refused_calls(state, self._spending.excess_calls(state))
        calls = [call for call in open_calls(state) if call.index not in refused]
        restricted = self._with_restrictions(self._last_context or self._resources.make_context())
        # Without a completion before them the calls were judged when it ended.
        repeats = preceding and calls and state.loops.pairs
        detected = detect(state, calls, self._loops) if repeats else None
        free = self._free(state, calls, detected)
        startable = [call for call in free if not await self._asks_first(call, restricted)]
        running = [status_entry(call, StepStatus.RUNNING) for call in startable]
        entries: list[LogEntry] = [*preceding, *inherited_taint(state, self._spec), *running]
        entries += refused_entries(state, refused)
        entries += [] if detected is None else [detected]
        if self._spending.uses_up_calls(state):
            entries.append(Warning(message=self._spending.out_of_calls_text()))

        def extra_write(connection: Connection) -> None:
            self._context = self._resources.read_context(connection)
            self._spending.close(connection, usage)
            if not self._is_pinned:
                spec = self._spec
                store_pins(connection, spec.run_id, spec.turn.key, spec.tenant_id, self._resources.pins)

        spent = {"usage": _encode(state.usage).decode(), "cost": state.cost}
        phase = RunPhase.ACTING if calls else RunPhase.THINKING
        await self._log.append(entries, phase=phase, changes=spent, extra_write=extra_write)
        self._is_pinned = True

    async def run(self) -> None:
        """Runs the open calls concurrently and logs the results; those that finish together in one write.

        Questions for a person are asked once the other calls have ended; then the run waits. On cancel this
        stops the tools, logs the finished results and lets RunCancelled pass.
        Raises NotAllowed if the user was disabled meanwhile.
        """
        if self._context is None:
            await self._interrupt_lost()
            await self.start(self._log.state, [], None)
        context, self._context = self._context, None
        if not isinstance(context, ToolContext):
            raise context or LuxxError("the calls were not started")
        self._last_context, context = context, self._with_restrictions(context)
        held = await self._settle_held()
        await self._start_late_calls(context)
        tasks: CallTasks = {
            asyncio.create_task(self._execute(call, context)): call for call in self._open_calls()
        }
        try:
            questions = await self._gather(tasks)
        except RunCancelled:
            await self._log_ready(tasks)
            raise
        finally:
            for task in tasks:
                task.cancel()
        if questions := held + questions:
            await self._asker.ask_person(questions)
            if self._signal.is_fired:
                raise RunCancelled

    async def keep_waiting(self) -> None:
        """Lets a run that was claimed while it waits for a person continue to wait."""
        await self._asker.keep_waiting()

    async def _interrupt_lost(self) -> None:
        """Ends the calls that ran when a process died as interrupted, unless their tool is repeatable or
        itself finds out what became of them."""
        state = self._log.state
        lost: list[Step] = []
        for call in open_calls(state):
            if call.status == StepStatus.RUNNING:
                found = self._resources.known_tools.lookup(str(call.name))
                if found is not None and found[0].resumes:
                    self._resumed.add(call.index)
                elif found is None or not found[0].repeatable:
                    lost.append(call)
        if lost:
            await self._log.append(interrupted_entries(state, lost))

    async def _execute(self, call: Step, context: ToolContext) -> Executed:
        call = self._as_given(call)
        call_context = self._delegator.without_later_skills(call, self._asker.with_answers(call, context))
        call_context = self._delegator.with_delegate(call, call_context).with_actions(
            activate=partial(self._activated_skills.__setitem__, str(call.id_ref)),
            write_todos=partial(self._todos.__setitem__, str(call.id_ref)),
            show=partial(self._show, str(call.id_ref), context.permissions.tainted_by),
            number_pages=self._number_pages,
        )
        if call.index in self._resumed:
            call_context = msgspec.structs.replace(call_context, is_resumed=True)
        executed = await self._executor.execute(call_of(call), call_context)
        await self._delegator.end_subagents(executed)
        if self._log.state.loops.detected is not None:
            executed = with_correction(self._log.state, call, executed)
        return self._asker.with_taint(self._delegator.with_taint(executed))

    def _show(self, call_id: str, tainted_by: str | None, command: UiCommand) -> None:
        state = self._log.state
        self._ui_commands.add(call_id, state, state.tainted_by or tainted_by, command)

    async def _asks_first(self, call: Step, context: ToolContext) -> bool:
        call = self._as_given(call)
        return await self._executor.asks_first(call_of(call), context) and not self._asker.has_answer(call)

    def _as_given(self, call: Step) -> Step:
        """The call as it is to run: with the arguments of a person who corrected it."""
        state = self._log.state
        return call if state.loops.detected is None else corrected(state, call)

    def _open_calls(self) -> list[Step]:
        """The open calls that are not held back."""
        held = {call.index for call in held_calls(self._log.state)}
        return [call for call in open_calls(self._log.state) if call.index not in held]

    def _free(
        self, state: TurnState, calls: Sequence[Step], detected: DoomLoopDetected | None
    ) -> Sequence[Step]:
        """Those of the calls that may run now. Before the end of a turn none starts."""
        if detected is None:
            held = {str(call.id_ref) for call in held_calls(state)}
        elif self._is_unattended and state.loops.count:
            return []
        else:
            held = set(detected.held)
        return [call for call in calls if call.id_ref not in held] if held else calls

    async def _settle_held(self) -> list[tuple[Step, NeedsAnswer]]:
        """Carries out what was decided about the calls that are held back; or the question to a person.

        Raises EndedByLoop.
        """
        state = self._log.state
        held, detected = held_calls(state), state.loops.detected
        if not held or detected is None:
            return []
        if self._is_unattended:
            if state.loops.count > 1:
                raise EndedByLoop
            await self._log_results(results_of(held, None), decided=[])
            return []
        answer = answer_on(state)
        if answer is None:
            return [question_on(state, detected)]
        decided = intervention(detected, answer)
        if decided.choice == LoopChoice.STOP:
            raise EndedByLoop([decided])
        is_run = decided.choice == LoopChoice.CONTINUE
        runs_first = decided.choice == LoopChoice.CORRECT and answer.arguments is not UNSET
        results = [] if is_run else results_of(held, decided, runs_first=runs_first)
        results = [(call, self._asker.with_taint(one)) for call, one in results]
        await self._log_results(results, decided=[decided])
        return []

    def _with_restrictions(self, context: ToolContext) -> ToolContext:
        """The context with the restrictions of the log: taint, skills, whether tools were offered."""
        state = self._log.state
        is_offered_any = not state.notes or state.notes[-1].has_tools
        return context.with_permissions(
            tainted_by=tainted_by(state, self._spec),
            narrowed=state.narrowed,
            offered=context.permissions.offered if is_offered_any else frozenset[str](),
        )

    async def _start_late_calls(self, context: ToolContext) -> None:
        """Logs pending calls as running that no longer need a permission under the current rules."""
        pending = [call for call in self._open_calls() if call.status == StepStatus.PENDING]
        late = [call for call in pending if not await self._asks_first(call, context)]
        if late:
            await self._log.append([status_entry(call, StepStatus.RUNNING) for call in late])

    async def _gather(self, tasks: CallTasks) -> list[tuple[Step, NeedsAnswer]]:
        """Logs the results of the tools. Returns the questions for a person, in the order of the calls."""
        waiting = set(tasks)
        while waiting:
            done, _ = await self._signal.wait(
                asyncio.wait({*waiting, self._delegator.requests_ready}, return_when=asyncio.FIRST_COMPLETED)
            )
            waiting -= done
            if self._delegator.requests_ready in done:
                await self._delegator.write_requested()
            finished = [
                (tasks[task], task.result()) for task in tasks if task in done and not needed_answer(task)
            ]
            if finished:
                await self._log_finished(finished)
        return [(call, signal) for task, call in tasks.items() if (signal := needed_answer(task)) is not None]

    async def _log_finished(self, results: list[tuple[Step, Executed]]) -> None:
        """Logs results, each with a change in a transaction of its own: what is stored may not fit one of
        them any more. Then that call runs again, with what is stored now."""
        if plain := [one for one in results if one[1].change is None]:
            await self._log_results(plain)
        for call, executed in results:
            for _ in range(CHANGE_TRIES if executed.change is not None else 0):
                try:
                    await self._log_results([(call, executed)])
                    break
                except ChangeRefused:
                    context = self._with_restrictions(self._last_context or self._resources.make_context())
                    executed = await self._signal.wait(self._execute(call, context))
            else:
                if executed.change is not None:
                    failed = msgspec.structs.replace(executed, result=NOT_CHANGED, change=None, files=())
                    await self._log_results([(call, failed)])

    async def _log_results(
        self, results: list[tuple[Step, Executed]], *, decided: list[LogEntry] | None = None
    ) -> None:
        """Logs the results of calls. `decided`: of calls that are not run, with what was decided on them."""
        is_last = len(results) == len(open_calls(self._log.state))
        entries = executed_entries(self._log.state, results)
        executed_calls = [executed for _, executed in results]
        if decided is not None:
            entries = [*decided, *entries]
        elif not all(executed.result.success for executed in executed_calls):
            entries = with_failure_notes(self._log.state, entries)
        entries += new_taint(self._log.state, executed_calls)
        entries += skill_entries(self._log.state, self._activated_skills, executed_calls)
        entries += self._delegator.end_entries(executed_calls)
        written = [one.call_id for one in executed_calls if one.result.success and one.call_id in self._todos]
        entries += [PlanUpdated(todos=self._todos[call_id]) for call_id in written]
        entries += self._ui_commands.entries(executed_calls)
        changes = [one.change for one in executed_calls if one.change is not None]
        entries += [change.event for change in changes]
        full_output_rows = [
            full_output_row(self._spec.run_id, one.call_id, one.full_output)
            for one in executed_calls
            if one.full_output is not None
        ]

        def store_with_results(connection: Connection) -> None:
            for change in changes:
                change.write(connection, self._spec.turn.step_id)
            for row in full_output_rows:
                store_output(connection, row)

        # The model reads the results next. Writing that phase here saves a transaction.
        phase = RunPhase.THINKING if is_last else RunPhase.OBSERVING
        await self._log.append(
            entries,
            phase=phase,
            extra_write=store_with_results if full_output_rows or changes else None,
            extra_bytes=sum(len(row["output"]) for row in full_output_rows),
        )

    async def _log_ready(self, tasks: CallTasks) -> None:
        waiting = {call.index for call in open_calls(self._log.state)}
        ready = [
            (call, task.result())
            for task, call in tasks.items()
            if task.done() and not task.cancelled() and call.index in waiting and needed_answer(task) is None
        ]
        if plain := [one for one in ready if one[1].change is None]:
            await self._log_results(plain)
        for one in ready:
            if one[1].change is not None:
                with suppress(ChangeRefused):  # Then the call is cancelled, as those that have not ended.
                    await self._log_results([one])


async def _numbered(store: Store, run_id: str, result: ToolResult) -> ToolResult:
    """A result that may be one of the web with the numbers of its pages; any other one as it is."""
    data: object = result.data
    if isinstance(data, dict) and ("url" in data or "results" in data):
        return await numbered(store, run_id, result)
    return result
