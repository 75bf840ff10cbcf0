"""The file tools and the workspace below them: what they do, and the escapes that they prevent."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxx.errors import ToolFailed
from luxx.tools.executor import ToolExecutor
from luxx.tools.files.descriptors import has_openat2, open_beneath_openat2, open_beneath_stepwise
from luxx.tools.files.workspace import MAX_FILE_BYTES, Workspace

SECRET = "the secret of somebody else"
OPENERS = [open_beneath_stepwise, *([open_beneath_openat2] if has_openat2() else [])]
Run = Callable[..., Any]


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.__name__)
def files(request: pytest.FixtureRequest, workspace: Path) -> Workspace:
    (workspace.parent / "secret.txt").write_text(SECRET)
    return Workspace(workspace, request.param)


@pytest.fixture
def run(builtin_executor: ToolExecutor, context_of: Any, call: Any) -> Run:
    def run_tool(name: str, **arguments: Any) -> Any:
        return asyncio.run(builtin_executor.execute(call(name, arguments), context_of())).result

    return run_tool


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret.txt", "leads out of the workspace"),
        ("a/../../secret.txt", "leads out of the workspace"),
        ("..", "leads out of the workspace"),
        ("/etc/passwd", "outside the workspace"),
        ("//etc/passwd", "outside the workspace"),
        ("a\0b", "NUL"),
        ("x" * 5000, "longer than 4095 bytes"),
        ("x" * 256, "longer than 255 bytes"),
        ("a/" * 100 + "b", "directories deep"),
        ("\ud800", "no file name can have"),
        ("nothing.txt", "nothing.txt does not exist"),
        (".", "is a directory"),
    ],
)
def test_a_path_that_cannot_be_read_says_why_without_the_hosts_path(
    path: str, words: str, files: Workspace, workspace: Path
) -> None:
    with pytest.raises(ToolFailed) as caught:
        files.read(path)
    assert words in caught.value.message
    assert str(workspace) not in caught.value.message


def test_paths_inside_are_normalised(files: Workspace, workspace: Path) -> None:
    assert files.relative("a/./b//../c") == "a/c"
    assert files.relative(str(workspace / "a" / "b")) == "a/b"
    assert files.relative(str(workspace)) == "."
    assert files.relative("") == "."
    with pytest.raises(ToolFailed):
        files.relative(str(workspace) + "-other/a")
    with pytest.raises(ToolFailed):
        files.relative(f"{workspace}/../secret.txt")


@pytest.mark.parametrize("target", ["../secret.txt", "{outside}/secret.txt", "/etc/passwd", "/proc/self/cwd"])
def test_a_link_that_leads_out_is_not_followed(target: str, files: Workspace, workspace: Path) -> None:
    (workspace / "link").symlink_to(target.format(outside=workspace.parent))
    with pytest.raises(ToolFailed):
        files.read("link")
    with pytest.raises(ToolFailed):
        files.write("link", b"x")
    assert (workspace.parent / "secret.txt").read_text() == SECRET


def test_a_directory_link_that_leads_out_is_neither_read_nor_written_through(
    files: Workspace, workspace: Path
) -> None:
    (workspace / "out").symlink_to(workspace.parent)
    for path in ("out/secret.txt", "out/workspace/../secret.txt/../../secret.txt"):
        with pytest.raises(ToolFailed):
            files.read(path)
    for path in ("out/new.txt", "out/deep/new.txt"):
        with pytest.raises(ToolFailed):
            files.write(path, b"x")
    with pytest.raises(ToolFailed), files.open_directory("out"):
        pass
    assert sorted(os.listdir(workspace.parent)) == ["secret.txt", "workspace"]


def test_pipes_devices_and_sockets_are_refused_at_once(files: Workspace, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(workspace)
    try:
        listener.bind("socket")
    finally:
        os.chdir(here)
        listener.close()
    for name in ("pipe", "socket"):
        with pytest.raises(ToolFailed, match="not a regular file"):
            files.read(name)
        with pytest.raises(ToolFailed, match="special file"):
            files.write(name, b"x")
        assert files.kind(name) == "other"


def test_a_file_over_the_cap_is_not_read_even_if_it_grows_meanwhile(
    files: Workspace, workspace: Path
) -> None:
    with open(workspace / "big", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ToolFailed, match="more than 10,485,760 bytes"):
        files.read("big")
    with pytest.raises(ToolFailed, match="too many"):
        files.write("bigger", b"x" * 11, limit=10)
    assert files.read("big", limit=MAX_FILE_BYTES + 1)[:3] == b"\0\0\0"


def test_a_written_file_is_private_whole_and_leaves_nothing_beside_it(
    files: Workspace, workspace: Path
) -> None:
    assert files.write("a/b/c.txt", b"one")
    assert not files.write("a/b/c.txt", b"two")
    assert (workspace / "a/b/c.txt").read_bytes() == b"two"
    assert stat.S_IMODE((workspace / "a/b/c.txt").stat().st_mode) == 0o600
    assert stat.S_IMODE((workspace / "a/b").stat().st_mode) == 0o700
    assert os.listdir(workspace / "a/b") == ["c.txt"]


def test_a_write_keeps_the_execute_permission(files: Workspace, workspace: Path) -> None:
    (workspace / "run.sh").write_text("old")
    (workspace / "run.sh").chmod(0o755)
    files.write("run.sh", b"new")
    assert stat.S_IMODE((workspace / "run.sh").stat().st_mode) == 0o700


def test_writing_replaces_a_hard_link_and_keeps_the_other_file(files: Workspace, workspace: Path) -> None:
    os.link(workspace.parent / "secret.txt", workspace / "linked.txt")
    files.write("linked.txt", b"mine")
    assert (workspace.parent / "secret.txt").read_text() == SECRET


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(files: Workspace, workspace: Path) -> None:
    (workspace / "dir").mkdir()
    (workspace / "file").write_text("old")
    for path in ("dir", ".", "file/below"):
        with pytest.raises(ToolFailed):
            files.write(path, b"x")
    assert sorted(os.listdir(workspace)) == ["dir", "file"]
    assert (workspace / "file").read_text() == "old"


def test_no_descriptor_is_left_open(files: Workspace, workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc")
    before = len(os.listdir("/proc/self/fd"))
    files.write("a/b/c", b"x")
    for path in ("a/b/c", "link/passwd", "a", "none", "a/b/c/d"):
        try:
            files.read(path)
        except ToolFailed:
            continue
    files.kind("a/b")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_within_the_workspace_works_if_the_kernel_supports_openat2(workspace: Path) -> None:
    (workspace / "a.txt").write_text("a")
    (workspace / "link").symlink_to("a.txt")
    if has_openat2():
        assert Workspace(workspace, open_beneath_openat2).read("link") == b"a"
    with pytest.raises(ToolFailed, match="link that is not followed"):
        Workspace(workspace, open_beneath_stepwise).read("link")


async def test_without_a_workspace_the_file_tools_say_so(
    builtin_executor: ToolExecutor, context_of: Any, call: Any, tmp_path: Path
) -> None:
    for place, words in ((None, "has no workspace"), (tmp_path / "gone", "workspace does not exist")):
        executed = await builtin_executor.execute(call("file_list"), context_of(workspace=place))
        assert words in str(executed.result.error)
        assert str(tmp_path) not in str(executed.result.error)


def test_a_file_is_read_by_lines_and_the_result_names_the_next_line(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"line {n}\r\n" for n in range(5)) + "end")
    assert run("file_read", path="a.txt", offset=1, limit=2).data == {
        "path": "a.txt",
        "content": "line 1\r\nline 2\r\n",
        "offset": 1,
        "lines": 2,
        "total_lines": 6,
        "truncated": True,
        "next_offset": 3,
        "note": "The file has 3 more lines; read on with offset 3.",
    }
    assert run("file_read", path="a.txt").data["content"].endswith("line 4\r\nend")
    assert "there is none at offset 6" in run("file_read", path="a.txt", offset=6).error


def test_a_whole_file_can_be_read_piece_by_piece(run: Run, workspace: Path) -> None:
    text = "".join(f"{n} é\n" for n in range(30_000))
    (workspace / "a.txt").write_text(text)
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        data = run("file_read", path="a.txt", offset=offset, limit=100_000).data
        pieces.append(data["content"])
        offset = data.get("next_offset")
    assert "".join(pieces) == text
    assert len(pieces) > 2


def test_an_empty_file_is_no_lines_and_a_binary_one_is_refused(run: Run, workspace: Path) -> None:
    (workspace / "empty").touch()
    (workspace / "binary").write_bytes(b"ELF\0\1")
    (workspace / "latin").write_bytes(b"caf\xe9\n")
    assert run("file_read", path="empty").data["total_lines"] == 0
    assert "binary" in run("file_read", path="binary").error
    assert run("file_read", path="latin").data["content"] == "caf\ufffd\n"


def test_write_list_and_exists_agree(run: Run, workspace: Path) -> None:
    assert run("file_write", path="d/a.txt", content="é\nb").data == {
        "path": "d/a.txt",
        "created": True,
        "bytes": 4,
        "lines": 2,
    }
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").touch()
    (workspace / "link").symlink_to("/etc")
    listed = run("file_list", recursive=True).data
    assert [(entry["path"], entry["type"]) for entry in listed["entries"]] == [
        (".git", "directory"),
        ("d", "directory"),
        ("d/a.txt", "file"),
        ("link", "link"),
    ]
    assert [entry["path"] for entry in run("file_list", path="d").data["entries"]] == ["d/a.txt"]
    assert run("file_exists", path="d").data == {"path": "d", "exists": True, "type": "directory"}
    assert run("file_exists", path="d/b").data == {"path": "d/b", "exists": False, "type": None}
    assert "not a directory" in run("file_list", path="d/a.txt").error


def test_a_huge_or_deep_directory_is_listed_within_bounds(run: Run, workspace: Path) -> None:
    for n in range(1500):
        (workspace / f"{n:04}").touch()
    listed = run("file_list").data
    assert listed["truncated"]
    assert listed["count"] == len(listed["entries"]) <= 1000


def test_a_very_deep_tree_is_listed_down_to_the_bound(run: Run, workspace: Path) -> None:
    here = os.getcwd()
    os.chdir(workspace)
    try:
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    listed = run("file_list", recursive=True).data
    assert 60 < listed["count"] < 70


def test_a_name_that_is_not_utf8_is_listed_all_the_same(run: Run, workspace: Path) -> None:
    (workspace / os.fsdecode(b"caf\xe9")).touch()
    assert run("file_list").data["entries"][0]["path"] == "caf\ufffd"


def test_grep_finds_lines_with_their_context_in_the_wanted_files(run: Run, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "a.py").write_text("one\ntwo Match\nthree\n")
    (workspace / "src" / "b.ts").write_text("match\r\n")
    (workspace / "node_modules").mkdir()
    (workspace / "node_modules" / "c.py").write_text("match")
    (workspace / "binary.py").write_bytes(b"match\0")
    result = run("file_grep", pattern="^(two )?match$", ignore_case=True, context_lines=1).data
    assert result["matches"] == [
        {"path": "src/a.py", "line_number": 2, "line": "two Match", "before": ["one"], "after": ["three"]},
        {"path": "src/b.ts", "line_number": 1, "line": "match", "before": [], "after": [""]},
    ]
    for glob, count in (("*.py", 1), ("*.{ts,py}", 2), ("src/**/*.ts", 1), ("*.md", 0), ("[ab].[!t]*", 1)):
        assert run("file_grep", pattern="(?i)match", file_pattern=glob).data["count"] == count, glob
    assert run("file_grep", pattern="match", path="src/b.ts").data["count"] == 1
    assert "not exist" in run("file_grep", pattern="x", path="nowhere").error


def test_grep_does_not_follow_links_or_wait_for_pipes(run: Run, workspace: Path) -> None:
    (workspace.parent / "secret.txt").write_text(SECRET)
    (workspace / "out").symlink_to(workspace.parent)
    (workspace / "file").symlink_to(workspace.parent / "secret.txt")
    os.mkfifo(workspace / "pipe")
    assert run("file_grep", pattern="secret").data["count"] == 0


def test_grep_stays_within_its_bounds(run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text(("match " + "x" * 3000 + "\n") * 2000)
    result = run("file_grep", pattern="match").data
    assert result["truncated"]
    assert result["count"] <= 200
    assert "narrow the pattern" in result["note"]
    assert all(len(match["line"]) < 600 for match in result["matches"])


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "(a*)*(a*)*(a*)*c", "a{500}{2}"])
def test_a_regular_expression_bomb_takes_linear_time(pattern: str, run: Run, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a" * 200_000 + "!")
    result = run("file_grep", pattern=pattern)
    assert result.success or "regular expression" in result.error


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "a{1001}", "a" * 1001, "((a{100}){100}){100}"])
def test_a_pattern_that_cannot_run_is_refused_with_the_reason(pattern: str, run: Run) -> None:
    assert not run("file_grep", pattern=pattern).success
