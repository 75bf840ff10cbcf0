"""`/chat-rooms`: rooms, their seats, members and messages, copies, files and outcomes."""

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.files import document_response
from luxx.api.http.request_input import (
    OPENAPI_EXTRA,
    TAKES_CUT_TEXT,
    BeforeId,
    InjectedCaller,
    LimitParameter,
    PageNumber,
    PageSize,
    TextId,
    document_body,
    parse_document,
)
from luxx.api.routes.messages import TOO_LARGE_PAGE, MessagePage, MessageText, check_text
from luxx.domain.conversations.views import MessageView
from luxx.features.rooms.document import RoomDocument, RoomTransfer
from luxx.features.rooms.forking import RoomForks
from luxx.features.rooms.members import MemberService
from luxx.features.rooms.models import (
    MAX_DOCUMENT_CHARACTERS,
    MemberView,
    NewMember,
    NewRoom,
    NewSeat,
    RoomChanges,
    RoomDetail,
    RoomOutcome,
    RoomView,
    SeatChanges,
    SeatView,
)
from luxx.features.rooms.running import RoomRunService
from luxx.features.rooms.seats import SeatService
from luxx.features.rooms.service import RoomService
from luxx.wire.run import MemberRight

InjectedRooms = NamedDependency[RoomService]
InjectedSeats = NamedDependency[SeatService]
InjectedMembers = NamedDependency[MemberService]
InjectedRoomTransfer = NamedDependency[RoomTransfer]
RoomFormat = Annotated[
    Literal["md", "yaml", "json"],
    QueryParameter(description="md: the messages, for reading; yaml, json: the room's file, for import"),
]
DOCUMENT_BODY = document_body("RoomDocument", "the file of GET /chat-rooms/{room_id}/export?format=yaml")


class SpokenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What you say in a room. `reply_to`: the message of the room that you answer."""

    content: MessageText
    reply_to: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class MemberRightBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new right of a member."""

    right: MemberRight


class RoomForkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`message_id`: the last message to copy; default: all messages."""

    message_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class RoomController(Controller):
    path = "/chat-rooms"
    tags = ("rooms",)
    opt = CHAT

    @get()
    async def list_rooms(
        self, caller: InjectedCaller, rooms: InjectedRooms, page: PageNumber = 1, page_size: PageSize = 20
    ) -> Success[Page[RoomView]]:
        """The rooms that you own or are a member of, newest first, with your right to each."""
        return page_of(await rooms.list_page(caller, page=page, page_size=page_size), page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, rooms: InjectedRooms, data: JSONBody[NewRoom]
    ) -> Success[RoomDetail]:
        """Create a room, with its seats if you like. Nothing runs until it is started."""
        return success(await rooms.create(caller, data), "room created")

    @get("/{room_id:str}")
    async def show(
        self, caller: InjectedCaller, rooms: InjectedRooms, room_id: TextId
    ) -> Success[RoomDetail]:
        """One room with its seats."""
        return success(await rooms.get(caller, room_id))

    @put("/{room_id:str}")
    async def change(
        self, caller: InjectedCaller, rooms: InjectedRooms, room_id: TextId, data: JSONBody[RoomChanges]
    ) -> Success[RoomDetail]:
        """Change the given settings; a running room reads them before its next turn. For the owner."""
        return success(await rooms.update(caller, room_id, data), "room saved")

    @delete("/{room_id:str}", status_code=200)
    async def remove(self, caller: InjectedCaller, rooms: InjectedRooms, room_id: TextId) -> Success[None]:
        """Stop a room and delete it with its messages, seats and members. For the owner."""
        await rooms.delete(caller, room_id)
        return success(None, "room deleted")

    @get("/{room_id:str}/messages", opt={OPENAPI_EXTRA: TOO_LARGE_PAGE})
    async def messages(
        self,
        caller: InjectedCaller,
        rooms: InjectedRooms,
        room_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
        before: BeforeId = None,
        limit: LimitParameter = None,
    ) -> Success[MessagePage]:
        """The messages of a room, newest first, with who said each.

        With `limit` or `before`: as many as fit into one response, and `has_more` says whether older ones
        follow. A page is complete or, if it is too large, refused with 413.
        """
        size = limit or page_size
        by_cursor = before is not None or (limit is not None and page == 1)
        found = await rooms.messages(
            caller, room_id, page=page, page_size=size, before=before, by_cursor=by_cursor
        )
        return success(
            MessagePage(
                items=found.items, total=found.total, page=page, page_size=size, has_more=found.has_more
            )
        )

    @post("/{room_id:str}/messages", status_code=201, opt={TAKES_CUT_TEXT: True})
    async def speak(
        self,
        caller: InjectedCaller,
        room_runs: NamedDependency[RoomRunService],
        room_id: TextId,
        data: JSONBody[SpokenBody],
    ) -> Success[MessageView]:
        """Say something in a room, at any moment; those who speak next read it. Needs the right to speak."""
        check_text(data.content)
        return success(await room_runs.speak(caller, room_id, data.content, data.reply_to), "said")

    @post("/{room_id:str}/reset", status_code=200)
    async def reset(
        self, caller: InjectedCaller, rooms: InjectedRooms, room_id: TextId
    ) -> Success[RoomDetail]:
        """Delete the messages, rounds and runs of a room, which is then idle; its seats stay.

        Needs the right to steer. Refused while the room is running.
        """
        return success(await rooms.reset(caller, room_id), "room reset")

    @get("/{room_id:str}/outcome")
    async def outcome(
        self, caller: InjectedCaller, rooms: InjectedRooms, room_id: TextId
    ) -> Success[RoomOutcome]:
        """How the newest run of a room ended: why, its totals, and the last message of each seat."""
        return success(await rooms.outcome(caller, room_id))

    @post("/{room_id:str}/fork", status_code=201)
    async def fork(
        self,
        caller: InjectedCaller,
        room_forks: NamedDependency[RoomForks],
        room_id: TextId,
        data: JSONBody[RoomForkBody] = RoomForkBody(),  # noqa: B008 - an empty body
    ) -> Success[RoomDetail]:
        """Copy a room with its seats and its messages, up to `message_id` if given. For the owner."""
        return success(await room_forks.fork(caller, room_id, data.message_id), "room copied")

    @get("/{room_id:str}/export", opt={OPENAPI_EXTRA: TOO_LARGE_PAGE})
    async def export(
        self,
        caller: InjectedCaller,
        room_transfer: InjectedRoomTransfer,
        room_id: TextId,
        format: RoomFormat = "yaml",
    ) -> Response[str]:
        """The room's file with its seats and prompts, for its owner; or its messages as Markdown."""
        if format == "md":
            text = await room_transfer.export_markdown(caller, room_id)
            return Response(text, media_type="text/markdown; charset=utf-8")
        return await document_response(await room_transfer.export(caller, room_id), format)

    @post("/import", status_code=201, opt={OPENAPI_EXTRA: DOCUMENT_BODY})
    async def import_room(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, room_transfer: InjectedRoomTransfer
    ) -> Success[RoomDetail]:
        """Create a room from its file, as YAML or JSON. Providers and agents are found by their names."""
        given = await parse_document(
            await request.body(), RoomDocument, max_characters=MAX_DOCUMENT_CHARACTERS
        )
        return success(await room_transfer.import_room(caller, given.document, given.wrong), "room created")


class SeatController(Controller):
    path = "/chat-rooms/{room_id:str}/agents"
    tags = ("rooms",)
    opt = CHAT

    @get()
    async def list_seats(
        self, caller: InjectedCaller, seats: InjectedSeats, room_id: TextId
    ) -> Success[list[SeatView]]:
        """The seats of a room, in turn order. Only its owner sees their system prompts."""
        return success(await seats.list_seats(caller, room_id))

    @post(status_code=201)
    async def add_seat(
        self, caller: InjectedCaller, seats: InjectedSeats, room_id: TextId, data: JSONBody[NewSeat]
    ) -> Success[SeatView]:
        """Add a seat, of an agent or whole. For the owner. A running room includes it from its next turn."""
        return success(await seats.add(caller, room_id, data), "seat added")

    @put("/{seat_id:int}")
    async def change_seat(
        self,
        caller: InjectedCaller,
        seats: InjectedSeats,
        room_id: TextId,
        seat_id: FromPath[int],
        data: JSONBody[SeatChanges],
    ) -> Success[SeatView]:
        """Change the given fields of a seat. The right to steer suffices for `muted` and `turn_order`."""
        return success(await seats.change(caller, room_id, seat_id, data), "seat saved")

    @delete("/{seat_id:int}", status_code=200)
    async def remove_seat(
        self, caller: InjectedCaller, seats: InjectedSeats, room_id: TextId, seat_id: FromPath[int]
    ) -> Success[None]:
        """Remove a seat; its messages stay. For the owner."""
        await seats.remove(caller, room_id, seat_id)
        return success(None, "seat removed")


class RoomMemberController(Controller):
    path = "/chat-rooms/{room_id:str}/members"
    tags = ("rooms",)
    opt = CHAT

    @get()
    async def list_members(
        self,
        caller: InjectedCaller,
        members: InjectedMembers,
        room_id: TextId,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[MemberView]]:
        """The members of a room, in the order in which they were added."""
        found = await members.list_page(caller, room_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def add_member(
        self, caller: InjectedCaller, members: InjectedMembers, room_id: TextId, data: JSONBody[NewMember]
    ) -> Success[MemberView]:
        """Let a user of your tenant watch, speak in or steer a room. For the owner."""
        return success(await members.add(caller, room_id, data), "member added")

    @put("/{user_id:int}")
    async def change_member(
        self,
        caller: InjectedCaller,
        members: InjectedMembers,
        room_id: TextId,
        user_id: FromPath[int],
        data: JSONBody[MemberRightBody],
    ) -> Success[MemberView]:
        """Change the right of a member. For the owner."""
        return success(await members.change(caller, room_id, user_id, data.right), "member saved")

    @delete("/{user_id:int}", status_code=200)
    async def remove_member(
        self, caller: InjectedCaller, members: InjectedMembers, room_id: TextId, user_id: FromPath[int]
    ) -> Success[None]:
        """Remove a member, who loses access at once; their streams end. Members may remove themselves."""
        await members.remove(caller, room_id, user_id)
        return success(None, "member removed")
