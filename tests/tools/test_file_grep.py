"""file_grep ends when the call is cancelled, whatever the pattern is, and a file in pieces gives
the same matches.
"""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxx.tools.executor import ToolExecutor
from luxx.wire.tool import ToolResult

SLOW = "[ab]*a[ab]{900}c"
SECONDS = 20.0
Grep = Callable[..., ToolResult]


@pytest.fixture
def grep(builtin_executor: ToolExecutor, context_of: Any, call: Any) -> Grep:
    def run_tool(looks: int | None = None, **arguments: Any) -> ToolResult:
        """With `looks`, the call is cancelled after it has checked this many times."""
        asked: list[int] = []

        def is_cancelled() -> bool:
            asked.append(1)
            return looks is not None and len(asked) > looks

        context = context_of(cancelled=is_cancelled)
        result = asyncio.run(builtin_executor.execute(call("file_grep", arguments), context)).result
        assert looks is None or len(asked) <= looks + 1, "it went on after it was stopped"
        return result

    return run_tool


def letters(count: int) -> str:
    draw = random.Random(1)
    return "".join(draw.choice("ab") for _ in range(count))


@pytest.mark.parametrize("path", [".", "0.txt"])
def test_nothing_is_searched_for_a_cancelled_call(path: str, grep: Grep, workspace: Path) -> None:
    for number in range(5):
        (workspace / f"{number}.txt").write_text("b\n" * 10)
    result = grep(0, pattern="b", path=path)
    assert result.data["matches"] == []
    assert result.data["note"] == "the search was cancelled"
    assert result.data["files_searched"] == (0 if path == "." else 1)


def test_a_walk_through_unwanted_files_ends_when_the_call_is_cancelled(grep: Grep, workspace: Path) -> None:
    for number in range(50):
        (workspace / f"{number}.txt").write_text("b")
    result = grep(7, pattern="b", file_pattern="*.none")
    assert result.data["note"] == "the search was cancelled"


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("anchor", ["", "$"])
def test_a_slow_pattern_in_a_large_file_ends_when_the_call_is_cancelled(
    end: str, anchor: str, grep: Grep, workspace: Path
) -> None:
    (workspace / "a.txt").write_text((letters(5_000) + end) * 1_000)
    start = time.monotonic()
    grep(10, pattern=SLOW + anchor)
    assert time.monotonic() - start < SECONDS


def test_a_line_too_long_for_the_pattern_is_named_and_searched_as_far_as_it_goes(
    grep: Grep, workspace: Path
) -> None:
    line = letters(1_000_000)
    (workspace / "a.txt").write_text(f"first\n{'a' * 2000}c{line}\nlast\n")
    (workspace / "b.txt").write_text(f"first\n{line}\n{'b' + 'a' * 2000}c\n")
    (workspace / "c.txt").write_text(f"{line}\nneedle\n")
    start = time.monotonic()
    result = grep(pattern=SLOW)
    assert time.monotonic() - start < SECONDS
    assert [(match["path"], match["line_number"]) for match in result.data["matches"]] == [
        ("a.txt", 2),
        ("b.txt", 3),
    ]
    words = "has 1,000,000 characters, too many for this pattern; its first 110,253 were searched"
    assert result.data["passed_over"] == [
        {"path": "b.txt", "because": f"line 2 {words}"},
        {"path": "c.txt", "because": f"line 1 {words}"},
    ]
    assert result.data["files_skipped"] == 0
    result = grep(pattern=SLOW + "$", file_pattern="c.txt")
    assert result.data["passed_over"] == [
        {"path": "c.txt", "because": "line 1 has 1,000,000 characters, too many for this pattern"}
    ]
    assert grep(pattern="[ab]needle|needle", file_pattern="c.txt").data["matches"] == [
        {"path": "c.txt", "line_number": 2, "line": "needle"}
    ]
    assert "passed_over" not in grep(pattern="needle$").data


@pytest.mark.parametrize("pattern", ["needle", "^needle", "needle$", "needle|x{900}y"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_of_many_pieces_is_searched_to_its_last_line(
    pattern: str, end: str, grep: Grep, workspace: Path
) -> None:
    draw = random.Random(2)
    lines = ["" if draw.random() < 0.3 else "é" * draw.randrange(2_000) for _ in range(500)]
    wanted = [1, *sorted(draw.sample(range(2, 500), 40)), 500]
    for number in wanted:
        lines[number - 1] = "needle"
    (workspace / "a.txt").write_bytes(end.join(lines).encode())
    result = grep(pattern=pattern)
    assert [match["line_number"] for match in result.data["matches"]] == wanted


def test_many_groups_in_a_pattern_take_no_longer(grep: Grep, workspace: Path) -> None:
    (workspace / "a.txt").write_text((letters(2_000) + "\n") * 100)
    start = time.monotonic()
    assert grep(pattern="(a)?(b)?" * 110 + "([ab])" * 10 + "c").data["matches"] == []
    assert time.monotonic() - start < 5.0
