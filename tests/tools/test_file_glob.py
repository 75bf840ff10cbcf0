"""file_glob: which files a pattern matches, and the notes if it matches none or too many."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxx.tools.executor import ToolExecutor
from luxx.wire.tool import ToolResult

Glob = Callable[..., ToolResult]


@pytest.fixture
def glob(builtin_executor: ToolExecutor, context_of: Any, call: Any) -> Glob:
    def run_tool(pattern: str, **more: Any) -> ToolResult:
        tool_call = call("file_glob", {"pattern": pattern, **more})
        return asyncio.run(builtin_executor.execute(tool_call, context_of())).result

    return run_tool


@pytest.fixture
def tree(workspace: Path) -> Path:
    for path in (
        "a.py",
        "b.txt",
        "src/c.py",
        "src/d1.ts",
        "src/deep/er/e.py",
        "src/[odd]/f.py",
        ".git/config",
        "src/node_modules/g.py",
        ".hidden.py",
    ):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)
    (workspace / "link.py").symlink_to("a.py")
    (workspace / "out").symlink_to("/etc")
    return workspace


@pytest.mark.parametrize(
    ("pattern", "more", "paths"),
    [
        ("*.py", {}, [".hidden.py", "a.py"]),
        ("**/*.py", {}, [".hidden.py", "a.py", "src/[odd]/f.py", "src/c.py", "src/deep/er/e.py"]),
        ("**/*.py", {"path": "src"}, ["src/[odd]/f.py", "src/c.py", "src/deep/er/e.py"]),
        ("src/*.py", {}, ["src/c.py"]),
        ("./src//*.{py,ts}", {}, ["src/c.py", "src/d1.ts"]),
        ("src/d[0-9].ts", {}, ["src/d1.ts"]),
        ("src/d[!0-9].ts", {}, []),
        ("src/?.py", {}, ["src/c.py"]),
        ("src/**/e.py", {}, ["src/deep/er/e.py"]),
        ("s*/**/*.py", {}, ["src/[odd]/f.py", "src/c.py", "src/deep/er/e.py"]),
        ("*/*.ts", {}, ["src/d1.ts"]),
        ("src/c.py", {}, ["src/c.py"]),
        (".git/*", {}, [".git/config"]),
        ("src/node_modules/*", {}, ["src/node_modules/g.py"]),
        ("**", {"path": "src/deep"}, ["src/deep/er/e.py"]),
        ("none/*.py", {}, []),
        ("*", {"path": "src/[odd]"}, ["src/[odd]/f.py"]),
        ("out/*", {"path": "src"}, []),
    ],
)
def test_a_pattern_matches_these_files(
    pattern: str, more: dict[str, str], paths: list[str], glob: Glob, tree: Path
) -> None:
    result = glob(pattern, **more).data
    assert [file["path"] for file in result["files"]] == paths
    assert result["count"] == len(paths)
    assert not result["truncated"]
    assert all(file["size"] == len(file["path"]) for file in result["files"])


def test_a_pattern_without_matches_suggests_a_search_in_subdirectories(glob: Glob, tree: Path) -> None:
    assert "**/*.ts looks in the directories below" in glob("*.ts").data["note"]
    assert "note" not in glob("**/*.rs").data
    assert "note" not in glob("*.py").data


def test_the_path_must_be_a_directory(glob: Glob, tree: Path) -> None:
    assert glob("*", path="nowhere").error == "nowhere does not exist"
    assert glob("*", path="a.py").error == "a.py is not a directory"
    assert "leads out of the workspace" in str(glob("*", path="out").error)
    assert "leads out of the workspace" in str(glob("out/*").error)


def test_more_files_than_are_shown_are_cut_with_a_note(glob: Glob, workspace: Path) -> None:
    for n in range(1200):
        (workspace / f"{n:04}").touch()
    result = glob("*").data
    assert result["truncated"]
    assert 500 < result["count"] <= 1000
    assert "narrow the pattern" in result["note"]
    assert len(glob("00*").data["files"]) == 100


@pytest.mark.parametrize("name", ["file_glob", "file_list", "file_grep"])
async def test_a_directory_with_too_many_names_is_reported(
    name: str, builtin_executor: ToolExecutor, context_of: Any, call: Any, workspace: Path
) -> None:
    (workspace / "crowd").mkdir()
    for n in range(10_001):
        os.symlink("x", workspace / "crowd" / str(n))
    (workspace / "zebra").write_text("zebra")
    asked = {
        "file_glob": {"pattern": "**/zebra"},
        "file_list": {"path": "crowd"},
        "file_grep": {"pattern": "zebra"},
    }
    result = (await builtin_executor.execute(call(name, asked[name]), context_of())).result
    assert result.success
    assert "more than 10,000 names" in str(result.data)
    assert name == "file_list" or result.data["count"] == 1


@pytest.mark.parametrize(
    "pattern", ["**/" * 60 + "x", "*" * 200, "{a," * 60 + "}" * 20, "[" * 200, "a" * 200]
)
def test_a_pattern_made_to_be_slow_is_fast(pattern: str, glob: Glob, workspace: Path) -> None:
    for n in range(300):
        (workspace / ("a" * (n % 200 + 1) + str(n))).touch()
    result = glob(pattern)
    assert result.success or "regular expression" in str(result.error)


def test_a_name_that_is_not_utf8_is_found_all_the_same(glob: Glob, workspace: Path) -> None:
    (workspace / os.fsdecode(b"caf\xe9.txt")).touch()
    assert glob("*.txt").data["files"] == [{"path": "caf\ufffd.txt", "size": 0}]
