"""`POST /auth/ticket` and `WS /ws?token=`: open a WebSocket. `http/websockets.py` handles its messages."""

from typing import Any

from litestar import Controller, WebSocket, post, websocket
from litestar.di import NamedDependency
from sqlalchemy.exc import SQLAlchemyError

from luxx.api.http.authentication import PEER, PUBLIC, check_password_changed
from luxx.api.http.envelope import Success, success
from luxx.api.http.parameters import InjectedCaller
from luxx.api.http.websockets import CLOSE_SIGN_IN_AGAIN, CLOSE_TRY_AGAIN_LATER, CloseReason, Sockets
from luxx.domain.accounts.authentication import Authenticator, Ticket, TicketService, check_peer
from luxx.domain.accounts.caller import Caller, Peer
from luxx.errors import LuxxError, TooMany

REASON_BYTES = 123
"""The most bytes that a close frame can contain."""

DATABASE_UNAVAILABLE = CloseReason(
    CLOSE_TRY_AGAIN_LATER, "the database does not answer; try again in a moment"
)


class SocketController(Controller):
    path = "/"
    tags = ("auth",)

    @post("/auth/ticket", status_code=200)
    async def ticket(
        self, caller: InjectedCaller, tickets: NamedDependency[TicketService]
    ) -> Success[Ticket]:
        """Get a ticket that opens one socket, `WS /ws?token=<ticket>`, within 30 seconds."""
        return success(await tickets.issue(caller))

    # Public, because browsers cannot send an Authorization header here; the ticket identifies the caller.
    @websocket("/ws", opt={PUBLIC: True})
    async def socket(
        self,
        socket: WebSocket[Any, Any, Any],
        authenticator: NamedDependency[Authenticator],
        tickets: NamedDependency[TicketService],
        sockets: NamedDependency[Sockets],
    ) -> None:
        """Refuses with a close code after the handshake: browsers do not expose a handshake's status."""
        caller_or_close = await _authenticate(socket, authenticator, tickets)
        await socket.accept()
        if isinstance(caller_or_close, Caller):
            await sockets.serve(caller_or_close, socket.receive, socket.send)
        else:
            await socket.close(caller_or_close.code, caller_or_close.reason)


async def _authenticate(
    socket: WebSocket[Any, Any, Any], authenticator: Authenticator, tickets: TicketService
) -> Caller | CloseReason:
    peer: Peer = socket.scope["state"][PEER]
    try:
        caller = await tickets.redeem(socket.query_params.get("token") or "", peer)
        check_peer(peer, has_default_password=caller.has_default_password)
        check_password_changed(caller)
        authenticator.count_request(caller)
    except TooMany as error:
        return _close_reason(CLOSE_TRY_AGAIN_LATER, error)
    except LuxxError as error:
        return _close_reason(CLOSE_SIGN_IN_AGAIN, error)
    except SQLAlchemyError:
        return DATABASE_UNAVAILABLE
    return caller


def _close_reason(code: int, error: LuxxError) -> CloseReason:
    return CloseReason(code, error.message.encode()[:REASON_BYTES].decode(errors="ignore"))
