"""The topics and the interface of the bus between processes. `Bus` itself is the bus of a single process.

A message is a hint and may be lost (the bus was down, a process was slow). A receiver must therefore also
find out later without it. Facts that must not be lost are rows in the database.
"""

from collections.abc import Callable
from enum import StrEnum

MessageHandler = Callable[[str, bytes], None]
"""Called with the name of the sending process and the payload, on the event loop's thread."""

PayloadFactory = Callable[[], bytes]
"""Makes the payload when there is capacity to send it; returns b"" if there is nothing left to send."""


class Topic(StrEnum):
    """All topics. The values are what servers of different versions send each other."""

    CANCEL = "cancel"
    """The id of a cancelled run: the process that drives it fires its cancel signal."""

    INPUT = "input"
    """The id of a run that was given an input: the process that drives it reads it."""

    QUEUE = "queue"
    """No payload: a run may wait in the queue, so processes scan it."""

    NOTICE = "notice"
    """Something changed that sockets of a user show."""

    SUBJECT = "subject"
    """A room has a new message or other members, which sockets of several users show."""

    ACCOUNT = "account"
    """Sign-ins of a user were revoked, or rights changed."""

    FOLLOW = "watch"
    """Requests to follow runs that the receiver drives."""

    UNFOLLOW = "unwatch"
    """Ids of runs that the sender no longer follows."""

    FRAMES = "frames"
    """Relay messages of followed runs."""

    TOOL_CACHE = "toolcache"
    """The id of a user whose cached tool results are removed."""

    SKILLS = "skills"
    """No payload: skills of a tenant or a project have changed."""

    MCP_SERVERS = "mcp"
    """No payload: MCP servers that people added, or their tools, have changed."""

    MCP_CALL = "mcpcall"
    """The id of a call over a connection to an MCP server: its owner carries it out. To all if nobody has the
    connection."""

    MCP_CALL_ENDED = "mcpended"
    """The id of a call over a connection that has ended: its caller reads the result."""

    MCP_CALL_CANCELLED = "mcpcancel"
    """The id of a cancelled call over a connection: its owner ends it."""

    DRIVE_BEGUN = "driven"
    """The sender has begun to drive a run."""


class Bus:
    """The bus of a single process: it has no receivers. `NetworkBus` connects several processes.

    One per process. Use it only on the event loop's thread. `process`: the name of this process, used to send
    to it alone; new at each start. `is_up`: whether messages can be sent now. `is_alone`: whether no other
    process can exist, so that publishing can be skipped.
    """

    is_up = True
    is_alone = True

    def __init__(self, process: str) -> None:
        self.process = process

    def subscribe(self, topic: Topic, handler: MessageHandler) -> None:
        """Calls `handler` with each message of a topic that another process sends from now on."""

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        """Calls `handler` whenever the bus reconnects: messages sent while it was down are lost."""

    def publish(self, topic: Topic, payload: bytes, *, to: str | None = None) -> None:
        """Sends to one process, or to all others. Returns at once; messages to one process keep their order.

        `payload` may have any length; the bus splits and joins it. The message is lost if the bus is down.
        """

    def publish_later(self, topic: Topic, make_payload: PayloadFactory, *, to: str | None = None) -> None:
        """Calls `make_payload` once, when earlier messages have been sent, and sends what it returns.

        Use it for data that can be joined: all that arrives during a send becomes one message. While the bus
        is down, `make_payload` is not called.
        """

    async def open(self) -> None: ...

    async def close(self) -> None: ...
