"""Executes every tool call: find, check, judge, approve, cache, run with a timeout, cut, record.

Not here: permission decisions (`permissions`), questions to users and stored results (`runs`).
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from luxx.errors import ToolFailed
from luxx.infra.clock import timestamp
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.strict_json import decode_strict_async
from luxx.tools.core import Approved, NeedsAnswer, Rejected, ToolContext, ToolDefinition, ToolRegistry
from luxx.tools.history import CallRecord, CallStatus, Executed, record_of
from luxx.tools.hooks import CallMetadata, HookedCall, result_of, result_of_error
from luxx.tools.output import (
    MAX_READ_ON_BYTES,
    MAX_REF,
    CutOutput,
    ResultCache,
    approval_note,
    cache_key,
    cut_output_async,
    denied_edit_note,
    truncate_to_bytes,
)
from luxx.tools.permissions.judge import (
    DecidedBy,
    Judge,
    OnRefused,
    PermissionVerdict,
    brings_untrusted,
    with_redirect_check,
)
from luxx.tools.workers import CancelToken, Overrun, Workers
from luxx.wire.tool import RuleAction, ToolCall, ToolResult

# Limit for all users, as a multiple of the limit for one: slow tools of one user leave threads for others.
_USERS_AT_ONCE = 16
# Per batch; a model may write hundreds of calls into one answer.
_MAX_PARALLEL = 32
# How long the executor waits for a cancelled asynchronous tool to clean up.
_GRACE_SECONDS = 1.0
_MAX_RECORDS = 1000
READ_RESULT_TOOL = "result_read"


async def ignore_refusal(context: ToolContext, tool: str, verdict: PermissionVerdict) -> None:
    """Default for `on_refused`: refusals are not recorded."""


class _CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended; the fields are those of `Executed`."""

    status: CallStatus
    output: CutOutput
    problems: dict[str, str] = {}
    note: str | None = None
    is_corrected: bool = False
    is_untrusted: bool = False


class _Stopped(Exception):
    """Ends a call without a result of the tool. `verdict`: the verdict that refused it, if one did."""

    def __init__(
        self,
        status: CallStatus,
        message: str,
        problems: dict[str, str] | None = None,
        verdict: PermissionVerdict | None = None,
    ) -> None:
        super().__init__(message)
        output = CutOutput(result=ToolResult.fail(message))
        self.outcome = _CallOutcome(status=status, output=output, problems=problems or {})
        self.verdict = verdict


_CANCELLED = _CallOutcome(status=CallStatus.CANCELLED, output=CutOutput(result=ToolResult.fail("cancelled")))
ResolvedCall = tuple[ToolDefinition, dict[str, Any]]


class ToolExecutor:
    """Executes calls of the caller's tools; a caller without any has those of `registry`, whose hooks run.

    `on_call` gets the record of every call that ended. `is_sandboxed`: whether programs run in a sandbox
    (default: no); without one, tools that start programs need an approval. `clock`: monotonic seconds."""

    def __init__(
        self,
        registry: ToolRegistry,
        config: ToolsConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], str] = timestamp,
        on_call: Callable[[CallRecord], None] = lambda record: None,
        on_refused: OnRefused = ignore_refusal,
        is_sandboxed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._on_call = on_call
        self._on_refused = on_refused
        self.judge = Judge(config, is_sandboxed)
        self.registry = registry
        self._config = config
        self._clock = clock
        self._now = now
        self._cache = ResultCache(config.cache_ttl, clock)
        self._history: deque[CallRecord] = deque(maxlen=_MAX_RECORDS)
        self._workers = Workers(config.max_workers, config.max_workers * _USERS_AT_ONCE)

    async def execute(self, call: ToolCall, context: ToolContext) -> Executed:
        """Execute one call. Errors become the result; only cancellation and signals are raised."""
        started_at, start = self._now(), self._clock()
        ended, has_ended = _CANCELLED, True
        context = msgspec.structs.replace(context, metadata=CallMetadata(call.call_id))
        try:
            ended = await self._carry_out(call, context)
        except _Stopped as stop:
            ended = stop.outcome
            if stop.verdict is not None:
                await self._on_refused(context, call.name, stop.verdict)
        except NeedsAnswer:
            has_ended = False
            raise
        finally:
            duration_ms = round((self._clock() - start) * 1000)
            if has_ended:
                ended_at, tools = self._now(), context.tools_or(self.registry)
                record = record_of(call, context, tools, started_at, ended_at, duration_ms, ended.status)
                self._history.append(record)
                self._on_call(record)
        return Executed(
            call_id=call.call_id,
            name=call.name,
            result=ended.output.result,
            duration_ms=duration_ms,
            status=ended.status,
            full_output=ended.output.full,
            problems=ended.problems,
            note=ended.note,
            is_corrected=ended.is_corrected,
            is_untrusted=ended.is_untrusted or context.metadata.is_untrusted,
            files=tuple(context.metadata.files),
            calls=context.metadata.calls,
            change=context.metadata.change if ended.output.result.success else None,
        )

    async def asks_first(self, call: ToolCall, context: ToolContext) -> bool:
        """Whether this call asks a user before it does anything."""
        entry = context.tools_or(self.registry).lookup(call.name)
        if entry is None or (tool := entry[0]).only_asks:
            return entry is not None
        try:
            arguments = await _read_arguments(call.arguments)
        except _Stopped:
            return False
        return (await self.judge.verdict_async(tool, arguments, context)).action == RuleAction.ASK

    async def process_tool_calls(self, calls: Sequence[ToolCall], context: ToolContext) -> list[Executed]:
        """Execute the calls one after the other."""
        return [await self.execute(call, context) for call in calls]

    async def process_tool_calls_parallel(
        self, calls: Sequence[ToolCall], context: ToolContext
    ) -> list[Executed]:
        """Execute the calls in parallel; the results are in the order of the calls."""
        results: dict[int, Executed] = {}
        async for batch in self.as_finished(calls, context):
            results.update(batch)
        return [results[index] for index in range(len(calls))]

    async def as_finished(
        self, calls: Sequence[ToolCall], context: ToolContext
    ) -> AsyncIterator[list[tuple[int, Executed]]]:
        """Execute the calls in parallel; yield the results in batches as they finish, each with its index.

        Closing the generator cancels the running calls. A signal is raised after all other calls ended.
        """
        semaphore = asyncio.Semaphore(_MAX_PARALLEL)

        async def execute(call: ToolCall) -> Executed:
            async with semaphore:
                return await self.execute(call, context)

        indexes = {asyncio.create_task(execute(call)): index for index, call in enumerate(calls)}
        running = set(indexes)
        signal: BaseException | None = None
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                batch: list[tuple[int, Executed]] = []
                for task in sorted(done, key=indexes.__getitem__):
                    if (raised := task.exception()) is None:
                        batch.append((indexes[task], task.result()))
                    else:
                        signal = signal or raised
                if batch:
                    yield batch
        finally:
            await _cancel(running)
        if signal is not None:
            raise signal

    def get_history(self, user_id: int | None = None, limit: int = 100) -> list[CallRecord]:
        """The latest of the last 1,000 calls, newest first, of one user or of all."""
        records = [each for each in reversed(self._history) if user_id is None or each.user_id == user_id]
        return records[: max(limit, 0)]

    def clear_cache(self, user_id: int | None = None) -> int:
        """Remove one user's cached results, or all; return how many."""
        return self._cache.clear(user_id)

    def close(self) -> None:
        """Let idle threads end."""
        self._workers.close()

    async def _carry_out(self, call: ToolCall, context: ToolContext) -> _CallOutcome:
        tool, arguments = await self._resolve_call(call, context)
        approved = await self._approved_call(tool, arguments, context)
        note = approval_note(approved)
        context = with_redirect_check(self.judge, tool, approved.arguments, context, self._on_refused)
        try:
            status, output = await self._cached_or_run(tool, approved.arguments, call, context)
        except _Stopped as stop:
            stop.outcome = msgspec.structs.replace(stop.outcome, note=note, is_corrected=approved.is_edited)
            raise
        return _CallOutcome(
            status=status,
            output=output,
            note=note,
            is_corrected=approved.is_edited,
            is_untrusted=brings_untrusted(tool),
        )

    async def _cached_or_run(
        self, tool: ToolDefinition, arguments: dict[str, Any], call: ToolCall, context: ToolContext
    ) -> tuple[CallStatus, CutOutput]:
        """The cached result, or the result of running the tool with its hooks."""
        cut = partial(
            cut_output_async,
            read_on_hint=self._read_on_hint(call, context),
            keeps_lines=tool.keeps_lines,
            is_for_program=context.caller.is_composition,
        )
        key = None
        if self._config.enable_cache and tool.is_cacheable:
            key = cache_key(tool.name, arguments, context.caller.user_id)
            if (cached := self._cache.get(key)) is not None:
                return CallStatus.CACHED, await cut(await context.actions.number_pages(cached))
        hooked = HookedCall(
            tool=tool.name,
            arguments=arguments,
            user_id=context.caller.user_id,
            username=context.caller.username,
            run_id=context.caller.run_id,
        )
        run = partial(self._run, tool, arguments, context)
        result = await self.registry.hooks.run_with_hooks(hooked, run)
        output = await cut(await context.actions.number_pages(result))
        if key is not None and result.success and not context.metadata.is_redirected and tool.keeps(result):
            self._cache.put(key, result)
        return (CallStatus.DONE if result.success else CallStatus.FAILED), output

    async def _resolve_call(self, call: ToolCall, context: ToolContext) -> ResolvedCall:
        entry = context.tools_or(self.registry).lookup(call.name)
        unknown_message = partial(self.judge.unknown_message, call.name, self.registry, context)
        if entry is None:
            raise _Stopped(CallStatus.UNKNOWN, unknown_message())
        tool, check = entry
        refused = self.judge.refusal(tool, context)
        if refused is not None:
            message = unknown_message() if refused.decided_by == DecidedBy.OFFER else refused.because
            raise _Stopped(CallStatus.DENIED, message, verdict=refused)
        arguments = await _read_arguments(call.arguments)
        _require_valid(tool, await check.problems_async(arguments))
        return tool, arguments

    async def _approved_call(
        self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext
    ) -> Approved:
        """The approved call, with the model's arguments or with those that a user edited."""
        verdict = await self._require_not_denied(tool, arguments, context)
        try:
            if context.permissions.earlier_approval is not None:
                approved = context.permissions.earlier_approval(arguments)
            elif verdict.action == RuleAction.ALLOW:
                return Approved(arguments=arguments)
            else:
                approved = await context.permissions.approve(tool, arguments, verdict)
        except Rejected as error:
            raise _Stopped(CallStatus.REJECTED, error.message) from error
        except ToolFailed as error:
            raise _Stopped(CallStatus.DENIED, error.message, verdict=verdict) from error
        if approved.is_edited:
            entry = context.tools_or(self.registry).lookup(tool.name)
            _require_valid(tool, await entry[1].problems_async(approved.arguments) if entry else {})
            try:
                await self._require_not_denied(tool, approved.arguments, context)
            except _Stopped as stop:
                stop.outcome = msgspec.structs.replace(stop.outcome, note=denied_edit_note(approved))
                raise
        return approved

    async def _require_not_denied(
        self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext
    ) -> PermissionVerdict:
        verdict = await self.judge.verdict_async(tool, arguments, context)
        if verdict.action == RuleAction.DENY:
            message = f"{tool.name} was not run: {verdict.because}. A user cannot approve it."
            raise _Stopped(CallStatus.DENIED, message, verdict=verdict)
        return verdict

    async def _run(self, tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        timeout = tool.timeout or self._config.timeout_seconds
        try:
            if tool.is_async:
                return await _run_async(tool, arguments, context, timeout)
            work = partial(_perform, tool, arguments, context)
            return await self._workers.run(context.caller.user_id, work, timeout)
        except Overrun as overrun:
            raise _Stopped(CallStatus.TIMEOUT, f"{tool.name} {overrun}") from None
        except ToolFailed as error:
            return ToolResult.fail(error.message)

    def _read_on_hint(self, call: ToolCall, context: ToolContext) -> str:
        # Outputs of member calls are not stored; only the output of the composition is.
        is_stored = context.caller.run_id is not None and not context.caller.is_composition
        reader = self.registry.get(READ_RESULT_TOOL) if is_stored else None
        if reader is not None and self.judge.is_offered(reader, context.permissions.rules):
            ref = msgspec.json.encode(call.call_id[:MAX_REF]).decode()
            message = f'Read on with {READ_RESULT_TOOL} {{"ref": {ref}, "offset": …, "limit": …}}.'
            if truncate_to_bytes(message, MAX_READ_ON_BYTES) == message:
                return message
        read_on = "" if context.caller.is_composition else context.actions.read_on
        return read_on or "To see more, ask again for a smaller part (offset, limit, a narrower request)."


def _perform(
    tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext, cancel_token: CancelToken
) -> ToolResult:
    worker_context = context.with_actions(
        cancelled=lambda: cancel_token() or context.actions.cancelled(), may_commit=cancel_token.may_commit
    )
    try:
        return result_of(tool.handler(arguments, worker_context))
    except (Exception, SystemExit) as error:
        return result_of_error(error)


async def _run_async(
    tool: ToolDefinition, arguments: dict[str, Any], context: ToolContext, timeout: float
) -> ToolResult:
    async def perform() -> ToolResult:
        try:
            return result_of(await tool.handler(arguments, context))
        except (Exception, SystemExit) as error:
            return result_of_error(error)

    task = asyncio.create_task(perform())
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        await _cancel({task})
    if not done:
        raise Overrun(timeout)
    return ToolResult.fail(f"{tool.name} cancelled itself") if task.cancelled() else task.result()


async def _cancel(tasks: set["asyncio.Task[Any]"]) -> None:
    """Cancel the running tasks and wait up to `_GRACE_SECONDS` for them to clean up."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=_GRACE_SECONDS)


def _require_valid(tool: ToolDefinition, problems: dict[str, str]) -> None:
    if problems:
        message = f"{tool.name} was not run: {'; '.join(problems.values())}"
        raise _Stopped(CallStatus.INVALID, message, problems)


async def _read_arguments(text: str) -> dict[str, Any]:
    """The arguments as a dict. Some models write an empty text for no arguments."""
    try:
        arguments = await decode_strict_async((text.strip() or "{}").encode())
    except (ValueError, RecursionError) as error:
        message = f"the arguments are not valid JSON: {error}"
        raise _Stopped(CallStatus.INVALID, message, {"arguments": str(error)}) from error
    if not isinstance(arguments, dict):
        message = f"the arguments must be a JSON object, not {type(arguments).__name__}"
        raise _Stopped(CallStatus.INVALID, message, {"arguments": message})
    return cast(dict[str, Any], arguments)
