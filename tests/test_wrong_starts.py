"""A wrong flag, key, directory or configuration: one sentence, the documented exit code, nothing written."""

import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from forked_luxx import run_luxx
from process_environment import plain_environ

SECRET = "a-secret-key-of-the-tests-with-32-bytes"
SERVE = ("serve", "--port", "0")
UNPRIVILEGED = """
import os
from luxx.app.cli.commands import load_all
from luxx.app.entry import main
load_all()
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
workspaces = os.path.join(os.getcwd(), "open", "workspaces")
os.environ["LUXX_WORKSPACE__ROOT"] = workspaces
for directory in ("closed", "open"):
    print(main(["serve", "--config", os.devnull, "--port", "0", "--data-dir", directory]))
print(main(["serve", "--port", "0"]))
"""


class WrongStart(NamedTuple):
    """A command that is refused, with a part of the sentence. `files` are written before."""

    arguments: tuple[str, ...]
    sentence: str
    code: int = 1
    environ: Mapping[str, str] = MappingProxyType({})
    files: Mapping[str, str] = MappingProxyType({})


STARTS = {
    "no command": WrongStart((), "required: command", 2),
    "unknown command": WrongStart(("start",), "invalid choice: 'start'", 2),
    "unknown option": WrongStart((*SERVE, "--prot", "1"), "unrecognized arguments: --prot", 2),
    "port of letters": WrongStart(("serve", "--port", "http"), "'http' is not a port", 2),
    "port too large": WrongStart(("serve", "--port", "70000"), "'70000' is not a port", 2),
    "health port below zero": WrongStart(("worker", "--health-port=-1"), "'-1' is not a port", 2),
    "level that does not exist": WrongStart(("user", "level", "ann", "5"), "invalid choice: 5", 2),
    "option without a value": WrongStart(("serve", "--data-dir"), "expected one argument", 2),
    "empty data directory": WrongStart((*SERVE, "--data-dir", ""), "--data-dir: data_dir:"),
    "data directory is a file": WrongStart(
        (*SERVE, "--data-dir", "data"), "is a file, not a directory", files={"data": ""}
    ),
    "data directory below a file": WrongStart(
        ("migrate", "--data-dir", "data/inner"), "is a file, not a directory", files={"data": ""}
    ),
    "data directory that cannot be created": WrongStart((*SERVE, "--data-dir", "/proc/luxx"), "/proc/luxx"),
    "data directory with a name too long": WrongStart((*SERVE, "--data-dir", "a" * 300), "name too long"),
    "database is a directory": WrongStart(
        SERVE, "is a directory, not a file", files={"data/luxx.db/file": ""}
    ),
    "database is another file": WrongStart(SERVE, "not a database", files={"data/luxx.db": "text " * 99}),
    "database below a file": WrongStart(
        SERVE,
        "is a file, not a directory",
        environ={"LUXX_DATABASE__URL": "sqlite:///./inner/luxx.db"},
        files={"data/inner": ""},
    ),
    "workspaces are a file": WrongStart(SERVE, "workspace.root", files={"workspaces": ""}),
    "passwd elsewhere": WrongStart(("user", "passwd", "admin"), "there is no Luxx database at data/luxx.db"),
    "list elsewhere": WrongStart(("user", "list", "--data-dir", "no"), "no Luxx database at no/luxx.db"),
    "level elsewhere": WrongStart(("user", "level", "ann", "2"), "there is no Luxx database"),
    "add elsewhere": WrongStart(("user", "add", "ann"), "there is no Luxx database"),
    "delete elsewhere": WrongStart(("user", "delete", "ann", "--yes"), "there is no Luxx database"),
    "backup elsewhere": WrongStart(("backup", "new.backup"), "there is no database at data/luxx.db"),
    "export elsewhere": WrongStart(("export", "ann", "ann.zip"), "there is no Luxx database"),
    "import elsewhere": WrongStart(("import", "ann.zip"), "there is no Luxx database"),
    "restore of nothing": WrongStart(("restore", "no.backup"), "no.backup"),
    "configuration is missing": WrongStart((*SERVE, "--config", "no.yaml"), "no.yaml: cannot be read"),
    "configuration is a directory": WrongStart((*SERVE, "--config", "."), ".: cannot be read"),
    "configuration is no YAML": WrongStart(SERVE, "not valid YAML", files={"config.yaml": "app: [1\nb: {"}),
    "configuration is no text": WrongStart(SERVE, "forbidden character", files={"config.yaml": "app: \x07"}),
    "configuration is a list": WrongStart(SERVE, "must be a section", files={"config.yaml": "- app"}),
    "unknown key": WrongStart(SERVE, "did you mean app.port?", files={"config.yaml": "app: {prot: 1}"}),
    "key of another type": WrongStart(SERVE, "whole number", files={"config.yaml": "app: {port: many}"}),
    "unknown variable": WrongStart(SERVE, "did you mean", environ={"LUXX_APP__PROT": "1"}),
    "variable of another type": WrongStart(
        SERVE, "write true or false", environ={"LUXX_LOCAL__ENABLED": "maybe"}
    ),
    "variable that is not set": WrongStart(
        SERVE, "the variable NOT_SET is not set", files={"config.yaml": "llm: {api_key: '${NOT_SET}'}"}
    ),
    "unknown host": WrongStart(
        ("serve", "--host", "no.invalid", "--port", "0"), "cannot listen on no.invalid"
    ),
    "address of another machine": WrongStart(
        ("serve", "--host", "192.0.2.1", "--port", "0"), "cannot listen on 192.0.2.1"
    ),
    "database of another product": WrongStart(
        SERVE, "must begin with sqlite:/// or postgresql://", environ={"LUXX_DATABASE__URL": "mysql://a/b"}
    ),
    "short secret key": WrongStart(SERVE, "at least 32 bytes", environ={"LUXX_APP__SECRET_KEY": "short"}),
    "worker without PostgreSQL": WrongStart(("worker",), "needs a PostgreSQL database"),
    **{
        f"{name} with a database on an unknown host": WrongStart(
            arguments,
            "the database",
            environ={
                "LUXX_DATABASE__URL": "postgresql://luxx:hidden-word@no.invalid/luxx",
                "LUXX_APP__SECRET_KEY": SECRET,
            },
        )
        for name, arguments in {
            "serve": SERVE,
            "worker": ("worker",),
            "migrate": ("migrate",),
            "users": ("user", "list"),
            "backup": ("backup", "new.backup"),
        }.items()
    },
}


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a directory."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, b"" if path.is_dir() else path.read_bytes())
        for path in folder.rglob("*")
    }


HEAVY = {
    "unknown command",
    "health port below zero",
    "option without a value",
    "data directory with a name too long",
    "level elsewhere",
    "add elsewhere",
    "delete elsewhere",
    "import elsewhere",
    "configuration is a list",
    "variable that is not set",
    "address of another machine",
    "worker without PostgreSQL",
    *(f"{name} with a database on an unknown host" for name in ("worker", "migrate", "users", "backup")),
}
"""Cases that resemble others: `make test-heavy` runs them."""


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, id=name, marks=pytest.mark.heavy if name in HEAVY else ())
        for name, start in STARTS.items()
    ],
)
def test_a_wrong_start_is_refused_in_one_sentence_and_writes_nothing(
    start: WrongStart, tmp_path: Path
) -> None:
    for name, content in start.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(content, "utf-8")
    before = contents(tmp_path)
    environ = plain_environ(HOME=str(tmp_path), LUXX_LOCAL__ENABLED="false") | dict(start.environ)
    finished = run_luxx(*start.arguments, cwd=tmp_path, env=environ, input="a-good-password\n")
    assert finished.returncode == start.code, finished.stderr
    (line,) = finished.stderr.splitlines()
    assert line.startswith("luxx: ")
    assert start.sentence in line
    assert "hidden-word" not in line
    assert finished.stdout == ""
    assert contents(tmp_path) == before


def test_a_port_in_use_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = run_luxx("serve", "--port", port, cwd=tmp_path, env=plain_environ())
    assert finished.returncode == 1
    assert finished.stderr.startswith(f"luxx: cannot listen on 127.0.0.1 port {port}: ")
    assert contents(tmp_path) == {}


def test_a_database_of_another_program_has_no_users(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with sqlite3.connect(tmp_path / "data" / "luxx.db") as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    finished = run_luxx("user", "list", cwd=tmp_path, env=plain_environ())
    assert finished.returncode == 1
    assert finished.stderr.startswith("luxx: there is no Luxx database at data/luxx.db; ")
    with sqlite3.connect(tmp_path / "data" / "luxx.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]
    connection.close()


def test_the_doctor_creates_nothing_where_there_is_no_server(tmp_path: Path) -> None:
    environ = plain_environ(LUXX_TOOLS__SANDBOX="none", LUXX_LOCAL__ENABLED="false")
    finished = run_luxx("doctor", "--data-dir", "no", cwd=tmp_path, env=environ)
    assert "no/luxx.db does not exist yet; the first start creates it" in finished.stdout
    assert contents(tmp_path) == {}


def test_what_another_user_owns_is_refused() -> None:
    """As root the commands give up their rights; otherwise the modes alone decide."""
    folder = Path(tempfile.mkdtemp(prefix="luxx-test-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        (folder / "closed").mkdir(mode=0o500)
        (folder / "open").mkdir()
        (folder / "open" / "luxx.db").touch(mode=0o400)
        (folder / "open").chmod(0o777)
        (folder / "config.yaml").touch(mode=0o000)
        before = contents(folder)
        finished = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED],
            cwd=folder,
            env=plain_environ(),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert contents(folder) == before
    finally:
        shutil.rmtree(folder)
    closed, database, configuration = finished.stderr.splitlines()
    assert closed.startswith("luxx: the data directory closed is not writable for this user; ")
    assert database.startswith("luxx: the database open/luxx.db is not writable for this user; ")
    assert configuration.startswith("luxx: config.yaml: cannot be read")
    assert finished.stdout.split() == ["1", "1", "1"]
