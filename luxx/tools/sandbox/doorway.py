"""The way out of a jail that has its own network: a socket that listens inside, and is heard outside.

It is made in the jail's network, where nothing but the jail can reach it, and handed to the server, which
serves it with the proxy: no path, no token and no process of ours in the jail.
Part of the supervisor: only the standard library, and of it only what loads fast.
"""

from __future__ import annotations

import _socket
import os
import sys

from luxx.tools.sandbox.entering import drop_rights, enter_network

PORT = 3128
"""Of 127.0.0.1 in the jail."""

IP_FREEBIND = 15
BACKLOG = 64


def make_door(pid: int, uid: int | None, letterbox: int) -> None:
    """Put the socket into `letterbox`, for the jail whose first process is `pid`.

    Done as whom it runs, in a child: who made a namespace may enter it, root may lack the capability.
    Raises OSError.
    """
    child = os.fork()
    if child == 0:
        try:
            drop_rights(uid)
            _make(pid, letterbox)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, "its way out could not be made")


def _make(pid: int, letterbox: int) -> None:
    enter_network(pid)
    door = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    # The jail may not have its address yet.
    door.setsockopt(_socket.IPPROTO_IP, IP_FREEBIND, 1)
    door.bind(("127.0.0.1", PORT))
    door.listen(BACKLOG)
    number = door.fileno().to_bytes(4, sys.byteorder)
    told = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, number)]
    _socket.socket(fileno=letterbox).sendmsg([b"d"], told)
