"""Logs have an event and fields and never a secret; metrics belong to the process that counts them."""

import asyncio
import contextlib
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from luxx.infra.observe import (
    LIBRARIES,
    QUIET_LIBRARIES,
    Metrics,
    configure_logging,
    redact,
    redact_fields,
    watch_event_loop,
)


class LogStream(io.StringIO):
    """A stream whose JSON lines can be read back as events."""

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Iterator[LogStream]:
    """A stream for logs; restores the logging of the process afterwards."""
    loggers = [logging.getLogger(name) for name in (None, *LIBRARIES, *QUIET_LIBRARIES)]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield LogStream()
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
    structlog.reset_defaults()


def test_a_log_is_an_event_with_fields_on_one_json_line(stream: LogStream) -> None:
    configure_logging("INFO", stream=stream)
    structlog.get_logger().info("run_finished", run_id="r1", tokens=12, status=None)
    [event] = stream.events()
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "run_finished",
        "level": "info",
        "run_id": "r1",
        "tokens": 12,
        "status": None,
    }


def test_the_level_applies_to_own_logs_and_to_those_of_libraries(stream: LogStream) -> None:
    configure_logging("WARNING", stream=stream)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    logging.getLogger("somewhere").info("quiet")
    logging.getLogger("somewhere").warning("loud library")
    assert [event["event"] for event in stream.events()] == ["loud", "loud library"]


@pytest.mark.parametrize("name", ["uvicorn.error", "uvicorn", "litestar"])
def test_libraries_log_in_the_same_format(stream: LogStream, name: str) -> None:
    configure_logging("INFO", stream=stream)
    logging.getLogger(name).info("listening on %s", "http://127.0.0.1:1")
    [event] = stream.events()
    assert (event["event"], event["logger"]) == ("listening on http://127.0.0.1:1", name)


def test_verbose_libraries_log_only_at_debug(stream: LogStream) -> None:
    configure_logging("INFO", stream=stream)
    logging.getLogger("alembic").info("quiet")
    assert stream.events() == []
    configure_logging("DEBUG", stream=stream)
    logging.getLogger("alembic").info("loud")
    assert [event["event"] for event in stream.events()] == ["loud"]


def test_configuring_again_replaces_the_stream(stream: LogStream) -> None:
    other = LogStream()
    configure_logging("INFO", stream=other)
    configure_logging("INFO", stream=stream)
    logging.getLogger("uvicorn.error").info("once")
    assert other.getvalue() == ""
    assert len(stream.events()) == 1


def test_the_console_format_is_text_and_not_json(stream: LogStream) -> None:
    configure_logging("INFO", stream=stream, is_console=True)
    structlog.get_logger().info("run_finished", run_id="r1")
    assert "run_finished" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        stream.events()


@pytest.mark.parametrize("is_console", [True, False])
def test_no_secret_reaches_a_log_by_key_text_or_exception(stream: LogStream, is_console: bool) -> None:
    configure_logging("DEBUG", stream=stream, is_console=is_console)
    log = structlog.get_logger()
    log.info("call", api_key="hunter2", headers={"X-Api-Key": "hunter2", "list": [{"password": "hunter2"}]})
    log.info("Authorization: Bearer hunter2-hunter2", url="https://me:hunter2@host/path?token=hunter2")
    logging.getLogger("alembic").warning("connecting to %s", "postgresql://luxx:hunter2@db/luxx")
    for logger in (log, logging.getLogger("elsewhere")):
        try:
            raise ValueError("bad key sk-hunter2hunter2")
        except ValueError:
            logger.exception("failed")
    # Both tracebacks are there, without the secret of their message.
    assert stream.getvalue().count("ValueError") >= 2
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bearer abcdef123456", "Bearer [hidden]"),
        ("key sk-proj-abcdef_123456 refused", "key [hidden] refused"),
        ("AIzaSyA0123456789012345678901234567890", "[hidden]"),
        ("eyJhbGciOi.eyJzdWIiOi.c2lnbmF0", "[hidden]"),
        ("postgresql+psycopg://luxx:p%40w@db:5432/x", "postgresql+psycopg://[hidden]@db:5432/x"),
        ('{"api_key": "abc def", "model": "m"}', '{"api_key": [hidden], "model": "m"}'),
        ("{'password': 'x y'}", "{'password': [hidden]}"),
        ("/ws?ticket=abc&x=1", "/ws?ticket=[hidden]&x=1"),
        (
            "the task-management-system used 12 tokens: fine",
            "the task-management-system used 12 tokens: fine",
        ),
        ("https://host/path@2", "https://host/path@2"),
    ],
)
def test_secrets_in_a_text_are_hidden_and_the_rest_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_token_counts_are_not_redacted() -> None:
    fields = {"token_count": 3, "max_tokens": 4, "tokens": {"prompt_tokens": 5}, "has_password": True}
    assert redact_fields(fields) == fields


@given(st.text(alphabet="ab -:/@.'\"=tokensk_", max_size=400))
def test_redacting_a_second_time_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("piece", ["a", "bearer ", "a://", "token='", "eyJ", "password   ", "a.b-c+", "sk-"])
def test_redaction_of_hostile_text_takes_linear_time(piece: str) -> None:
    def seconds(repeats: int) -> float:
        text = piece * repeats
        started = time.thread_time()
        redact(text)
        return time.thread_time() - started

    short = min(seconds(2_000) for _ in range(5))
    # Ten times the text takes ten times as long where the time is linear, a hundred times where quadratic.
    assert min(seconds(20_000) for _ in range(3)) < 40 * short + 0.01


def test_metrics_of_two_servers_do_not_mix() -> None:
    first, second = Metrics(), Metrics()
    first.count_request("GET", "/health", 200, 0.002)
    first.count_request("GET", "/health", 200, 0.002)
    expected = b'luxx_http_requests_total{method="GET",route="/health",status="200"} 2.0'
    assert expected in first.render()
    assert expected not in second.render()
    assert b'luxx_http_request_seconds_count{method="GET",route="/health"} 2.0' in first.render()


def test_every_documented_metric_exists() -> None:
    metrics = Metrics()
    metrics.runs_started_total.labels("chat").inc()
    metrics.runs_finished_total.labels("chat", "completed").inc()
    metrics.runs_active.set(1)
    metrics.deltas_total.inc(5)
    metrics.upstream_requests_total.labels("ok").inc()
    metrics.tokens_total.labels("prompt").inc(7)
    metrics.tool_calls_total.labels("file_read", "true").inc()
    metrics.tool_seconds.labels("file_read").observe(0.1)
    metrics.db_write_seconds.observe(0.001)
    metrics.sse_clients.set(2)
    text = metrics.render().decode()
    for line in (
        'luxx_runs_started_total{kind="chat"} 1.0',
        'luxx_runs_finished_total{kind="chat",status="completed"} 1.0',
        "luxx_runs_active 1.0",
        "luxx_deltas_total 5.0",
        'luxx_upstream_requests_total{outcome="ok"} 1.0',
        'luxx_tokens_total{kind="prompt"} 7.0',
        'luxx_tool_calls_total{success="true",tool="file_read"} 1.0',
        'luxx_tool_seconds_count{tool="file_read"} 1.0',
        "luxx_db_write_seconds_count 1.0",
        "luxx_sse_clients 2.0",
    ):
        assert line in text


async def test_a_blocked_event_loop_shows_in_its_lag() -> None:
    metrics = Metrics()
    # This blocks the event loop for 80 ms, so at least one wait of 10 ms lasts more than 50 ms longer.
    asyncio.get_running_loop().call_later(0.005, time.sleep, 0.08)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watch_event_loop(metrics, interval=0.01), 0.3)
    text = metrics.render().decode()
    at_most_50_ms = re.search(r'lag_seconds_bucket\{le="0.05"\} (\S+)', text)
    all_waits = re.search(r"lag_seconds_count (\S+)", text)
    assert at_most_50_ms is not None
    assert all_waits is not None
    assert float(at_most_50_ms[1]) < float(all_waits[1])
