"""`/tasks/{id}/…` and `/chat-rooms/{id}/…` for the run of a task or room: start, follow and steer it.

`/tasks/plan` proposes a plan.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, cast

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Success, success
from luxx.api.http.event_streams import DISCONNECT_KEY, ClientDisconnect, Streams
from luxx.api.http.request_input import InjectedCaller, Seq, TextId
from luxx.api.routes.runs import LastEventId, LogPageSize, LogPlace, follow_resumed, follow_run
from luxx.domain.accounts.caller import Caller
from luxx.errors import LuxxError
from luxx.features.rooms.running import RoomRunService, SentContext
from luxx.features.tasks.models import MAX_STEPS, NewPlan, TaskStepTranscript
from luxx.features.tasks.proposals import PlanService
from luxx.features.tasks.running import TaskRunService
from luxx.runs.service import RunService
from luxx.wire.run import ENDED, Run

InjectedTaskRuns = NamedDependency[TaskRunService]
InjectedRoomRuns = NamedDependency[RoomRunService]
InjectedRuns = NamedDependency[RunService]
InjectedStreams = NamedDependency[Streams]
GivenStepId = Annotated[str, Meta(min_length=1, max_length=64)]


class ApprovalBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps that may begin; none named: the task."""

    step_ids: Annotated[list[GivenStepId], Meta(max_length=MAX_STEPS)] = []


THE_TASK = ApprovalBody()


class PlanController(Controller):
    path = "/tasks/plan"
    tags = ("tasks",)
    opt = CHAT

    @post(status_code=200)
    async def plan(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        plans: NamedDependency[PlanService],
        runs: InjectedRuns,
        streams: InjectedStreams,
        data: JSONBody[NewPlan],
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Propose steps for a goal, with an estimate of their cost. Stores no task.

        With `Accept: text/event-stream` the answer is the stream of the run. Otherwise the run is cancelled
        when the client disconnects.
        """
        if "text/event-stream" in request.headers.get("accept", ""):
            return await streams.follow(
                caller, lambda: plans.propose_and_watch(caller, data, accumulated=accumulated)
            )
        run = await plans.propose(caller, data)
        with cancelled_on_disconnect(request, caller, runs, run):
            return Response(success(await plans.plan(caller, run)), media_type="application/json")


@contextmanager
def cancelled_on_disconnect(
    request: Request[Any, Any, Any], caller: Caller, runs: RunService, run: Run
) -> Generator[None]:
    """Cancels the run if the client disconnects within the `with` block."""
    cancelling: list[asyncio.Task[None]] = []

    async def cancel() -> None:
        with suppress(LuxxError):  # The run has just ended.
            await runs.cancel(caller, run.id)

    def on_disconnect() -> None:
        cancelling.append(asyncio.create_task(cancel(), name=f"cancel {run.id}"))

    disconnect = cast("dict[str, Any]", request.scope).get(DISCONNECT_KEY) or ClientDisconnect()
    disconnect.add_callback(on_disconnect)
    try:
        yield
    finally:
        disconnect.remove_callback(on_disconnect)


class TaskRunController(Controller):
    path = "/tasks/{task_id:str}"
    tags = ("tasks",)
    opt = CHAT

    @post("/execute", status_code=200)
    async def execute(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        task_runs: InjectedTaskRuns,
        streams: InjectedStreams,
        task_id: TextId,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Carry out the pending steps of a task and follow its run; a task without steps is planned first.

        With `Accept: application/json`: 202 and the run.
        """
        return await streams.follow_started(
            request,
            caller,
            partial(task_runs.start, caller, task_id),
            partial(task_runs.start_and_watch, caller, task_id, accumulated=accumulated),
        )

    @post("/cancel", status_code=200)
    async def cancel(
        self, caller: InjectedCaller, task_runs: InjectedTaskRuns, runs: InjectedRuns, task_id: TextId
    ) -> Success[Run]:
        """End the run of a task for good; finished steps are kept, steps in progress are pending again."""
        run = await runs.cancel(caller, await task_runs.executed_run_id(caller, task_id))
        return success(run, "cancelled" if run.status in ENDED else "cancelling")

    @post("/pause", status_code=200)
    async def pause(
        self, caller: InjectedCaller, task_runs: InjectedTaskRuns, task_id: TextId
    ) -> Success[Run]:
        """Pause a task: steps in progress are cut and pending again."""
        return success(await task_runs.pause(caller, task_id), "paused")

    @post("/resume", status_code=200)
    async def resume(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        task_runs: InjectedTaskRuns,
        runs: InjectedRuns,
        streams: InjectedStreams,
        task_id: TextId,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Continue a paused task, and follow its run from there. With `Accept: application/json`: 202 and the
        run."""
        run = await task_runs.resume(caller, task_id)
        return await follow_resumed(request, caller, runs, streams, run, accumulated=accumulated)

    @post("/approve", status_code=200)
    async def approve(
        self,
        caller: InjectedCaller,
        task_runs: InjectedTaskRuns,
        task_id: TextId,
        data: JSONBody[ApprovalBody] = THE_TASK,
    ) -> Success[Run]:
        """Let a task, or the named steps, begin that wait for approval."""
        return success(await task_runs.approve(caller, task_id, data.step_ids), "approved")

    @post("/steps/{step_id:str}/skip", status_code=200)
    async def skip(
        self, caller: InjectedCaller, task_runs: InjectedTaskRuns, task_id: TextId, step_id: TextId
    ) -> Success[Run | None]:
        """Leave out a step, and the steps that need it. Without a run of the task `data` is null."""
        return success(await task_runs.skip(caller, task_id, step_id), "skipped")

    @post("/steps/{step_id:str}/retry", status_code=200)
    async def retry(
        self, caller: InjectedCaller, task_runs: InjectedTaskRuns, task_id: TextId, step_id: TextId
    ) -> Success[Run]:
        """Carry out a failed or skipped step again, then what was skipped because of it."""
        return success(await task_runs.retry(caller, task_id, step_id), "started")

    @get("/steps/{step_id:str}/transcript")
    async def transcript(
        self,
        caller: InjectedCaller,
        task_runs: InjectedTaskRuns,
        task_id: TextId,
        step_id: TextId,
        attempt: Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1)] = None,
    ) -> Success[TaskStepTranscript]:
        """What a step was given and did, in one attempt; default: the newest.

        The step `task:result` is the final result of the task."""
        return success(await task_runs.transcript(caller, task_id, step_id, attempt))

    @get("/events")
    async def events(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        task_runs: InjectedTaskRuns,
        runs: InjectedRuns,
        streams: InjectedStreams,
        task_id: TextId,
        last_event_id: LastEventId = None,
        from_sequence: Seq = 0,
        limit: LogPageSize = 100,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Stream the newest run of a task from the event after `Last-Event-ID`; with
        `Accept: application/json` read its log."""
        run_id = await task_runs.newest_run_id(caller, task_id)
        place = LogPlace(last_event_id, from_sequence, limit)
        return await follow_run(request, caller, runs, streams, run_id, place, accumulated=accumulated)


class FloorBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The seat that speaks next."""

    seat_id: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RoomRunController(Controller):
    path = "/chat-rooms/{room_id:str}"
    tags = ("rooms",)
    opt = CHAT

    @post("/start", status_code=200)
    async def start(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        room_runs: InjectedRoomRuns,
        streams: InjectedStreams,
        room_id: TextId,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Start a room and follow its run. With `Accept: application/json`: 202 and the run.

        Needs the right to steer. Refused while the room runs or is paused.
        """
        return await streams.follow_started(
            request,
            caller,
            partial(room_runs.start, caller, room_id),
            partial(room_runs.start_and_watch, caller, room_id, accumulated=accumulated),
        )

    @post("/resume", status_code=200)
    async def resume(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        room_runs: InjectedRoomRuns,
        runs: InjectedRuns,
        streams: InjectedStreams,
        room_id: TextId,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Continue a paused room with the seats whose turns were cut, then with the next seat of its round;
        follow its run from there.

        With `Accept: application/json`: 202 and the run.
        """
        run = await room_runs.resume(caller, room_id)
        return await follow_resumed(request, caller, runs, streams, run, accumulated=accumulated)

    @post("/stop", status_code=200)
    async def stop(
        self, caller: InjectedCaller, room_runs: InjectedRoomRuns, room_id: TextId
    ) -> Success[Run]:
        """Pause a room: the turns in progress are cut, and their text is kept."""
        return success(await room_runs.pause(caller, room_id), "paused")

    @post("/finish", status_code=200)
    async def finish(
        self, caller: InjectedCaller, room_runs: InjectedRoomRuns, room_id: TextId
    ) -> Success[Run]:
        """End a room's run: the turns in progress are cut, and their text is kept."""
        return success(await room_runs.finish(caller, room_id), "ended")

    @post("/skip", status_code=200)
    async def skip(
        self, caller: InjectedCaller, room_runs: InjectedRoomRuns, room_id: TextId
    ) -> Success[Run]:
        """End the turns in progress; their text is kept, and the room goes on."""
        return success(await room_runs.skip(caller, room_id), "skipped")

    @post("/floor", status_code=200)
    async def give_floor(
        self,
        caller: InjectedCaller,
        room_runs: InjectedRoomRuns,
        room_id: TextId,
        data: JSONBody[FloorBody],
    ) -> Success[Run]:
        """Let a seat speak next, in a room with the policy `manual`."""
        return success(await room_runs.give_floor(caller, room_id, data.seat_id), "floor given")

    @get("/events")
    async def events(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        room_runs: InjectedRoomRuns,
        runs: InjectedRuns,
        streams: InjectedStreams,
        room_id: TextId,
        last_event_id: LastEventId = None,
        from_sequence: Seq = 0,
        limit: LogPageSize = 100,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Stream the newest run of a room from the event after `Last-Event-ID`; with
        `Accept: application/json` read its log."""
        run_id = await room_runs.newest_run_id(caller, room_id)
        place = LogPlace(last_event_id, from_sequence, limit)
        return await follow_run(request, caller, runs, streams, run_id, place, accumulated=accumulated)

    @get("/messages/{message_id:str}/context")
    async def context(
        self, caller: InjectedCaller, room_runs: InjectedRoomRuns, room_id: TextId, message_id: TextId
    ) -> Success[SentContext]:
        """What the model of a seat was sent for this message. For the owner of the room."""
        return success(await room_runs.context(caller, room_id, message_id))
