"""The filter of what an MCP server prints, before it is parsed."""

import time

import msgspec
import pytest

from luxx.domain.mcp.inbox import (
    MIB,
    MOST_ASKING_BYTES,
    MOST_LATE,
    MOST_PARTS,
    MOST_UNASKED,
    Inbox,
    McpMessage,
    ProtocolAbuse,
    parts,
)

CHANGED = b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": %s}\n'


def inbox() -> Inbox:
    return Inbox(lambda: 0.0)


def nested_value(size: int) -> bytes:
    return b"[" + b"[]," * (size // 3) + b"[]]"


def test_of_a_change_notification_only_its_occurrence_is_stored() -> None:
    assert inbox().take(CHANGED % nested_value(60_000)) == [McpMessage(text=b"", is_change=True)]


@pytest.mark.parametrize("params", [nested_value(3000), b'{"text": "%s"}' % (b"x" * MOST_ASKING_BYTES)])
def test_a_large_request_is_received_without_its_parameters(params: bytes) -> None:
    line = b'{"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": %s}\n' % params
    (message,) = inbox().take(line)
    bare = {"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage"}
    assert msgspec.json.decode(message.text) == bare


def test_more_than_a_mebibyte_a_second_of_unrequested_data_ends_the_server() -> None:
    with pytest.raises(ProtocolAbuse, match="more than 1 MiB that answer no request"):
        inbox().take(CHANGED % nested_value(60_000) * 20)


@pytest.mark.parametrize("what", ["id", "method"])
def test_a_value_of_the_wrong_type_costs_nothing(what: str) -> None:
    line = b'{"jsonrpc": "2.0", "%s": %s}\n' % (what.encode(), nested_value(900_000))
    began = time.process_time()
    assert inbox().take(line) == []
    assert time.process_time() - began < 0.1


def test_an_answer_is_accepted_once_and_only_while_its_call_waits() -> None:
    box = inbox()
    box.expect_answer(1, "tools/call")
    box.expect_answer(2, "tools/call")
    box.forget(2)
    answers = [b'{"jsonrpc": "2.0", "id": %d, "result": {}}' % number for number in (1, 2)]
    assert box.take(b"\n".join([*answers, b""])) == [McpMessage(text=answers[0], answers=1)]
    with pytest.raises(ProtocolAbuse, match=f"more than {MOST_UNASKED} lines"):
        box.take((answers[0] + b"\n") * (MOST_UNASKED + 1))


def test_a_late_answer_does_not_count_as_unrequested() -> None:
    box = inbox()
    for number in range(MOST_LATE + 1):
        box.expect_answer(number, "tools/call")
        box.forget(number)
    late = b'{"jsonrpc": "2.0", "id": %d, "result": {"text": "%s"}}\n'
    for number in range(1, 100):
        assert box.take(late % (number, b"x" * 100_000)) == []
    with pytest.raises(ProtocolAbuse, match="1 MiB"):
        box.take(late % (0, b"x" * 2 * MIB))


def test_bytes_of_lists_are_counted() -> None:
    box = inbox()
    box.expect_answer(1, "tools/list")
    line = b'{"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}'
    box.take(line + b"\n")
    assert box.listed_bytes == len(line)


def test_values_are_counted_outside_of_strings() -> None:
    assert parts(msgspec.json.encode({"text": 'a,b[{"c\\",' * 20_000})) == 1
    assert parts(msgspec.json.encode([{"a": "\\", "b": "x,"}] * 1_000)) == 1 + 1_000 * 2 + 999
    assert parts(nested_value(300_000)) > MOST_PARTS
    assert parts(msgspec.json.encode([""] * 200_000)) > MOST_PARTS
