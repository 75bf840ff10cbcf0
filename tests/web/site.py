"""A web server whose answers the tests set, good or bad, and which counts its visits."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = bytes | Callable[[socket.socket, str], None]

HTML = "text/html; charset=utf-8"


def page(body: str | bytes, kind: str = HTML, status: str = "200 OK", **headers: str) -> bytes:
    """A complete answer; header names are written with `_` for `-`."""
    data = body.encode() if isinstance(body, str) else body
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}"
    return head.encode() + b"Connection: close\r\n\r\n" + data


def redirect(to: str, status: str = "302 Found") -> bytes:
    return page("moved", status=status, Location=to)


class Site:
    """`routes` has the answers by path, `*` that for all other paths. An answer is the bytes to send, or a
    function that gets the connection and the head of the request.

    `visits` are the requested paths, `heads` the whole heads, `connections` the number of connections.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.routes: dict[str, Answer] = {}
        self.visits: list[str] = []
        self.heads: list[str] = []
        self.connections = 0
        self._visit_added = threading.Condition()
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._thread.join(5)

    def visited(self, count: int, timeout: float = 20.0) -> bool:
        """Whether this many visits have come; waits for them."""
        with self._visit_added:
            return self._visit_added.wait_for(lambda: len(self.visits) >= count, timeout)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            with connection:
                connection.settimeout(30)
                head = _head_of(connection)
                path = head.split(" ", 2)[1]
                self.heads.append(head)
                with self._visit_added:
                    self.visits.append(path)
                    self._visit_added.notify_all()
                answer = self.routes.get(
                    path, self.routes.get("*", page("nothing here", status="404 Not Found"))
                )
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                else:
                    answer(connection, head)


def _head_of(connection: socket.socket) -> str:
    """The head of a request, with the part of its body that was read with it."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65_536)
        if not piece:
            raise OSError("gone")
        head += piece
    head, _, body = head.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.partition(b":")[2]):
                body += connection.recv(65_536)
    return (head + b"\r\n\r\n" + body).decode()


@contextmanager
def site(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    started = Site(tls)
    try:
        yield started
    finally:
        started.close()
