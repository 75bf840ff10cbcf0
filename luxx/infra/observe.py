"""Structured logs without secrets, and the metrics of one server process.

A log entry is an event name and fields: `structlog.get_logger().info("run_finished", run_id=…)`. Logs of
libraries get the same format. Each `Metrics` has a registry of its own, so two servers in one process do
not share counters. `OutputStream` writes the log so that losing its reader stops nothing.
"""

import asyncio
import io
import logging
import os
import re
import select
import stat
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from structlog.typing import EventDict, Processor

from luxx.wire.turn import Usage

HIDDEN = "[hidden]"
SECRET_WORDS = (
    r"api[_-]?key|authorization|password|passwd|secret(?:[_-]?key)?|token|cookie|ticket|credentials?"
)
SECRET_KEY = re.compile(rf"(?:{SECRET_WORDS})$", re.IGNORECASE)
SECRET_TEXT = re.compile(
    r"\b(?P<scheme>bearer|basic)\s+[\w.~+/=-]{6,}"
    r"|(?P<url>\b[a-z][a-z0-9+.-]{0,30}://)[^\s/@'\"]{1,500}@"
    r"|\b(?:sk|gsk|xai|ghp|gho|hf|glpat)[-_][\w-]{8,}"
    r"|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{5,}\.[\w-]{5,}\.?[\w-]*"
    rf"|(?P<name>(?:{SECRET_WORDS})['\"]?\s{{0,3}}[=:]\s{{0,3}}(?:(?:bearer|basic)\s{{1,3}})?)"
    r"(?:'[^']+'|\"[^\"]+\"|[^\s'\",;&})]+)",
    re.IGNORECASE,
)
LIBRARIES = ("uvicorn", "uvicorn.error", "uvicorn.access", "alembic", "litestar")
QUIET_LIBRARIES = (
    "httpx",
    "httpcore",
    "aiohttp",
    "sqlalchemy",
    "asyncio",
    "alembic",
    "hpack",
    "uvicorn.sockets",
)
"""Libraries whose info messages are logged only at level DEBUG."""

STALL_MS = 500
"""How long a write waits for a reader that reads nothing, once. After that, lines are lost without a wait
until the reader reads again: a write that blocks would stop the event loop."""

PIPE_BYTES = select.PIPE_BUF
"""A pipe that is ready takes this much without blocking."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


def redact(text: str) -> str:
    """`text` without parts that look like a key, a token or a password."""
    return SECRET_TEXT.sub(_mask_match, text)


def redact_fields(value: Any) -> Any:
    """A copy of `value`, at any depth with texts redacted and the values of secret keys hidden."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {
            key: _masked(item) if _names_secret(key) else redact_fields(item) for key, item in fields.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_fields(item) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(str(value))


def _mask_match(match: re.Match[str]) -> str:
    if match["scheme"]:
        return f"{match['scheme']} {HIDDEN}"
    if match["url"]:
        return f"{match['url']}{HIDDEN}@"
    return f"{match['name'] or ''}{HIDDEN}"


def _names_secret(key: Any) -> bool:
    return isinstance(key, str) and SECRET_KEY.search(key) is not None


def _masked(value: Any) -> Any:
    return value if value is None or value == "" or isinstance(value, bool) else HIDDEN


class OutputStream(io.TextIOBase):
    """Writes text to the descriptor of a stream. It never raises and never waits for long.

    Text that cannot be written (closed pipe, full disk, a reader that reads nothing) is lost and counted. The
    next text that is written is followed by the log entry `log_lines_lost`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._lock = threading.RLock()
        self._lost = 0
        self._is_torn = self._is_stalled = False
        self._poll: select.poll | None = None
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        content = text.encode(self._stream.encoding, "backslashreplace")
        with self._lock:
            # The first part of a line that was cut is not continued by another line.
            if not self._write_all(b"\n" + content if self._is_torn else content):
                self._lost += 1
            elif self._lost:
                count, self._lost = self._lost, 0
                structlog.get_logger().warning("log_lines_lost", count=count)
        return len(text)

    def _write_all(self, content: bytes) -> bool:
        is_begun = False
        try:
            while content:
                if self._poll is not None and not self._poll.poll(0 if self._is_stalled else STALL_MS):
                    self._is_stalled = True
                    break
                written = os.write(self._descriptor, content[:PIPE_BYTES] if self._poll else content)
                self._is_stalled, is_begun, content = False, True, content[written:]
        except OSError:
            pass
        self._is_torn = bool(content) and (is_begun or self._is_torn)
        return not content


def output_stream(stream: TextIO | None) -> TextIO:
    """An OutputStream of stdout or stderr. A stream without a descriptor is returned unchanged."""
    if stream is None:
        return io.StringIO()
    try:
        return cast("TextIO", OutputStream(stream))
    except (OSError, ValueError):
        return stream


def configure_logging(level: str, *, stream: TextIO | None = None, is_console: bool | None = None) -> None:
    """Sends all logs to `stream` (default: stderr): readable on a terminal, JSON lines elsewhere.

    Call it at start, before the creation of the engine and of uvicorn (with `log_config=None`). A later call
    replaces an earlier one.
    """
    target = stream or output_stream(sys.stderr)
    level_number = logging.getLevelNamesMapping()[level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact_event,
    ]
    renderer = _renderer(target.isatty() if is_console is None else is_console)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level_number),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    _route_libraries(level_number, target, shared, renderer)


def _route_libraries(level_number: int, target: TextIO, shared: list[Processor], renderer: Processor) -> None:
    handler = logging.StreamHandler(target)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name], processors=[remove, *shared, renderer]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level_number)
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        # SQLAlchemy's engine adds a console handler to a logger without handlers.
        logger.handlers[:] = [logging.NullHandler()]
        logger.propagate = True
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(
            level_number if level_number <= logging.DEBUG else max(level_number, logging.WARNING)
        )


def _redact_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if _names_secret(key):
            event[key] = _masked(value)
        elif key not in ("timestamp", "level"):
            event[key] = redact_fields(value)
    return event


def _renderer(is_console: bool) -> Processor:
    if is_console:
        return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    encode: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=str).encode

    def render_json(_logger: Any, _method: str, event: EventDict) -> str:
        return encode(event).decode()

    return render_json


class Metrics:
    """The metrics of one server process. Labels have few values: route templates, tools, outcomes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._http: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        ProcessCollector(registry=self.registry)
        self._describe_http()
        self._describe_runs()
        self._describe_process()

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"luxx_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"luxx_{name}", help_text, registry=self.registry)

    def _histogram(
        self, name: str, help_text: str, *labels: str, buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        return Histogram(f"luxx_{name}", help_text, labels, buckets=buckets, registry=self.registry)

    def _describe_http(self) -> None:
        self.http_requests_total = self._counter(
            "http_requests", "Requests answered.", "method", "route", "status"
        )
        self.http_request_seconds = self._histogram(
            "http_request_seconds", "Seconds until the response started.", "method", "route"
        )
        self.untrusted_forwards_total = self._counter(
            "untrusted_forwards", "Requests with X-Forwarded-For from an address that is no trusted proxy."
        )
        self.sse_clients = self._gauge("sse_clients", "Clients subscribed to a run's events.")
        self.sockets = self._gauge("sockets", "Open WebSockets.")

    def _describe_runs(self) -> None:
        self.runs_started_total = self._counter("runs_started", "Runs started.", "kind")
        self.runs_finished_total = self._counter(
            "runs_finished", "Runs that ended, by status.", "kind", "status"
        )
        self.runs_active = self._gauge("runs_active", "Runs that this process drives.")
        self.deltas_total = self._counter("deltas", "Deltas read from providers.")
        self.upstream_requests_total = self._counter(
            "upstream_requests", "Requests to providers, by outcome.", "outcome"
        )
        self.tokens_total = self._counter("tokens", "Tokens as providers counted them.", "kind")
        self.tool_calls_total = self._counter("tool_calls", "Tool calls.", "tool", "success")
        self.tool_seconds = self._histogram(
            "tool_seconds", "Seconds a tool call took.", "tool", buckets=LONG_SECONDS
        )

    def _describe_process(self) -> None:
        self.db_write_seconds = self._histogram(
            "db_write_seconds", "Seconds from the request for a write until it was on disk."
        )
        self.bus_up = self._gauge("bus_up", "Whether the bus to other servers is connected.")
        self.bus_packets_total = self._counter(
            "bus_packets", "Packets sent to and received from other servers.", "way"
        )
        self.bus_dropped_total = self._counter(
            "bus_dropped", "Messages dropped because the bus queue was full."
        )
        self.relayed_runs = self._gauge("relayed_runs", "Runs of other servers that this process follows.")
        self.event_loop_lag_seconds = self._histogram(
            "event_loop_lag_seconds", "Delay of event loop wake-ups."
        )

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request. Caches the labelled counters, whose look-up is the expensive part."""
        key = (method, route, status)
        counters = self._http.get(key)
        if counters is None:
            counters = self._http[key] = (
                self.http_requests_total.labels(method, route, str(status)),
                self.http_request_seconds.labels(method, route),
            )
        counters[0].inc()
        counters[1].observe(seconds)

    @contextmanager
    def run(self, kind: str) -> Generator[Callable[[str, Usage], None]]:
        """Counts a run as active within the context. Call the yielded function when the run ends."""
        self.runs_active.inc()
        self.runs_started_total.labels(kind).inc()

        def count_end(status: str, usage: Usage) -> None:
            self.runs_finished_total.labels(kind, status).inc()
            self.tokens_total.labels("prompt").inc(usage.prompt_tokens)
            self.tokens_total.labels("completion").inc(usage.completion_tokens)

        try:
            yield count_end
        finally:
            self.runs_active.dec()

    def tool_called(self, name: str, seconds: float, *, success: bool) -> None:
        """Counts a tool call that ended. `name` must be registered: models call tools that do not exist."""
        self.tool_calls_total.labels(name, str(success).lower()).inc()
        self.tool_seconds.labels(name).observe(seconds)

    def model_called(self, outcome: str, deltas: int) -> None:
        """Counts a model call that ended. `outcome`: `ok`, `cancelled`, or the kind of its error."""
        self.upstream_requests_total.labels(outcome).inc()
        self.deltas_total.inc(deltas)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)


async def watch_event_loop(metrics: Metrics, interval: float = 0.5) -> None:
    """Measures the delay of event loop wake-ups until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        metrics.event_loop_lag_seconds.observe(max(0.0, loop.time() - due))
