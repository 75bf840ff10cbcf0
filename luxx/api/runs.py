"""`/runs`: look at runs, follow one, cancel one."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from luxx.api.envelope import Page, Success, success
from luxx.api.messages import wants_json
from luxx.api.parameters import Before, GivenCaller, Limit, PageNumber, PageSize, Seq, TextId
from luxx.api.sse import Streams
from luxx.errors import InvalidInput
from luxx.runs.events import StoredEvent
from luxx.runs.service import RunService
from luxx.runs.views import RunFilter
from luxx.wire.run import ENDED, Run, RunKind, RunStatus

EventLimit = Annotated[int, QueryParameter(ge=1, le=1000)]


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Logged events, oldest first, each with its `seq`; of large ones fewer than `limit`."""

    events: list[msgspec.Raw]
    has_more: bool


class RunController(Controller):
    path = "/runs"
    tags = ("runs",)

    @get()
    async def list_runs(
        self,
        caller: GivenCaller,
        runs: NamedDependency[RunService],
        kind: FromQuery[RunKind | None] = None,
        subject_id: Annotated[str | None, QueryParameter(max_length=64)] = None,
        status: FromQuery[RunStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
        before: Before = None,
        limit: Limit = None,
    ) -> Success[Page[Run]]:
        """Your runs, newest first."""
        wanted = RunFilter(kind=kind, subject_id=subject_id, status=status, before=before)
        size = limit or page_size
        items, total = await runs.list_page(caller, wanted, page=page, page_size=size)
        return success(Page(items=items, total=total, page=page, page_size=size))

    @get("/{run_id:str}")
    async def show(
        self, caller: GivenCaller, runs: NamedDependency[RunService], run_id: TextId
    ) -> Success[Run]:
        """One run as it is now."""
        return success(await runs.get(caller, run_id))

    @get("/{run_id:str}/events")
    async def events(
        self,
        request: Request[Any, Any, Any],
        caller: GivenCaller,
        runs: NamedDependency[RunService],
        streams: NamedDependency[Streams],
        run_id: TextId,
        last_event_id: Annotated[int | None, QueryParameter(ge=0, le=2**31 - 1)] = None,
        from_sequence: Seq = 0,
        limit: EventLimit = 100,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Follow a run from the event after `Last-Event-ID`; with `Accept: application/json` read its log."""
        named = _last_event_id(request)
        if wants_json(request):
            events, has_more = await runs.events(caller, run_id, after=max(0, from_sequence - 1), limit=limit)
            return Response(success(EventPage(events=[numbered(e) for e in events], has_more=has_more)))
        after = named if last_event_id is None else last_event_id
        return await streams.follow(
            caller, lambda: runs.watch(caller, run_id, after=after, accumulated=accumulated)
        )

    @post("/{run_id:str}/cancel", status_code=200)
    async def cancel(
        self, caller: GivenCaller, runs: NamedDependency[RunService], run_id: TextId
    ) -> Success[Run]:
        """End a run for good; what was produced is kept."""
        run = await runs.cancel(caller, run_id)
        return success(run, "cancelled" if run.status in ENDED else "cancelling")


def _last_event_id(request: Request[Any, Any, Any]) -> int:
    header = request.headers.get("last-event-id", "0").strip(" \t") or "0"
    if not header.isascii() or not header.isdigit() or len(header) > 9:
        raise InvalidInput("Last-Event-ID is the number of an event of this run", kind="last_event_id")
    return int(header)


def numbered(event: StoredEvent) -> msgspec.Raw:
    """The event's JSON with its place in the log."""
    return msgspec.Raw(b'{"seq":%d,%s' % (event.seq, event.data[1:]))
