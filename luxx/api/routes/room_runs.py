"""`/chat-rooms/{id}/…` for the run of a room: start, follow, steer and speak."""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Success, success
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import InjectedCaller, Seq, TextId
from luxx.api.routes.runs import LogPageSize, LogPlace, follow_resumed, follow_run
from luxx.features.rooms.running import RoomRunService, SentContext
from luxx.runs.service import RunService
from luxx.wire.run import Run

InjectedRoomRuns = NamedDependency[RoomRunService]
InjectedRuns = NamedDependency[RunService]
InjectedStreams = NamedDependency[Streams]


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
        last_event_id: Annotated[int | None, QueryParameter(ge=0, le=2**31 - 1)] = None,
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
