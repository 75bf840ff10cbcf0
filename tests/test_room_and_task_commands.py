"""`luxx room` and `luxx task` as processes against a real server whose model is scripted."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.server_process import ADMIN_PASSWORD, ServerProcess, model_settings
from breaking_proxy import breaking_proxy
from forked_luxx import run_luxx
from process_environment import ROOT, plain_environ, scripted_models
from screen_terminal import PATIENCE_SECONDS, ScreenTerminal

from luxx.providers.scripted import Call, Counts, Gate, Pause, Rule, Script, ScriptedProvider, Text, When

pytestmark = pytest.mark.heavy

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
USAGE = Counts(prompt=10, completion=5)
PLAN = (
    '{"steps": [{"id": "a", "name": "Collect", "goal": "Collect it", "depends_on": []},'
    ' {"id": "b", "name": "Write", "goal": "Write it", "depends_on": ["a"]}]}'
)
ASK = Call(
    name="ask_clarification",
    arguments={
        "question_type": "scope",
        "question": "Which colour?",
        "options": [{"label": "red"}, {"label": "blue", "description": "like the sea"}],
    },
)
ASK_BRIEFLY = Call(
    name="ask_clarification",
    arguments={
        "question_type": "scope",
        "question": "Which colour?",
        "options": [{"label": "red"}, {"label": "blue", "is_recommended": True}],
        "timeout_seconds": 1,
    },
)
WRITE = Call(name="file_write", arguments={"path": "note.txt", "content": "milk"})


def says(name: str, text: str) -> Rule:
    return Rule(when=When(system=f"You are {name} in"), reply=[Text(text=text), USAGE])


def does(step_id: str, *reply: Any, **more: Any) -> Rule:
    return Rule(when=When(user=rf"Your step \[{step_id}\]", **more), reply=[*reply, USAGE])


SCRIPT = Script(
    rules=[
        says("Ann", "I say yes."),
        says("Bob", "I say no."),
        Rule(
            when=When(system="You are Halting in", call=1),
            reply=[Text(text="Here it begins"), Gate(name="never"), Text(text="end")],
        ),
        Rule(
            when=When(system="You are Halting in"),
            reply=[Text(text="Here it ends."), USAGE],
        ),
        Rule(
            when=When(system="You are Slow in"),
            reply=[Text(text="Here it begins"), Gate(name="never"), Text(text="end")],
        ),
        Rule(when=When(system="You are Late in"), reply=[Text(text="one two three "), Pause(seconds=3.0)]),
        Rule(when=When(system="You are Hasty in", has_tool_result=False), reply=[ASK_BRIEFLY]),
        Rule(when=When(system="You are Hasty in"), reply=[Text(text="Blue, then."), USAGE]),
        Rule(when=When(system="You are Asker in", has_tool_result=False), reply=[ASK]),
        Rule(when=When(system="You are Asker in"), reply=[Text(text="As you like."), USAGE]),
        Rule(when=When(system="You are Long in"), reply=[Text(text=LONG), USAGE], delay=0.02),
        Rule(when=When(system="You are Broken in"), status=401, message="the key is wrong"),
        Rule(
            when=When(system="You are Reader in", call=1),
            reply=[Text(text="I read."), Gate(name="spoken"), USAGE],
        ),
        Rule(when=When(system="You are Reader in"), reply=[Text(text="Hello!"), USAGE]),
        Rule(when=When(system="Split the goal"), reply=[Text(text=PLAN), USAGE]),
        does("ask", ASK, has_tool_result=False),
        does("ask", Text(text="As you like."), has_tool_result=True),
        does("save", WRITE, has_tool_result=False),
        does("save", Text(text="It is saved."), has_tool_result=True),
        Rule(when=When(user=r"Your step \[(once|twice)\]", call=1), status=400, message="not now"),
        Rule(when=When(user=r"Your step \[(once|twice)\]", call=2), status=400, message="not now"),
        Rule(when=When(user=r"Your step \[bad\]"), status=401, message="the key is wrong"),
        Rule(
            when=When(user=r"Your step \[slow\]", call=1),
            reply=[Text(text="Half"), Gate(name="slow"), USAGE],
        ),
        does("slow", Text(text="Whole.")),
        does("[a-z]+", Text(text="Done.")),
        Rule(when=When(system="Write its final result"), reply=[Text(text="All is done [a]."), USAGE]),
    ]
)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    with scripted_models(SCRIPT) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(model: ScriptedProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), **model_settings(model.url)) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    """Signed in as admin."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client:
        answer = client.post("/auth/login", json={"username": "admin", "password": ADMIN_PASSWORD})
        client.headers["authorization"] = f"Bearer {answer.json()['data']['access_token']}"
        yield client


@pytest.fixture
def environ(server: ServerProcess, api: httpx.Client) -> dict[str, str]:
    token = api.headers["authorization"].removeprefix("Bearer ")
    return plain_environ(LUXX_URL=server.url, LUXX_TOKEN=token, TERM="dumb")


def run(
    server: ServerProcess, environ: dict[str, str], *arguments: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    return run_luxx(*arguments, cwd=server.folder, env=environ, input=given)


def room_file(*names: str, title: str = "Talk", **more: Any) -> str:
    seats = [{"name": name, "color": "#2f6fde"} for name in names]
    return json.dumps(
        {"version": 1, "title": title, "task": "Decide.", "max_rounds": 1, "agents": seats, **more}
    )


def task_file(*steps: dict[str, Any], name: str = "Report", **more: Any) -> str:
    return json.dumps({"version": 1, "name": name, "goal": "Report it", "steps": steps, **more})


def step(step_id: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    return {"id": step_id, "name": f"Step {step_id}", "depends_on": [*depends_on], **more}


def terminal(environ: dict[str, str], *arguments: str) -> ScreenTerminal:
    names = ("LUXX_TOKEN", "TERM", "COLORTERM", "NO_COLOR")
    chosen = {name: environ[name] for name in names if name in environ}
    return ScreenTerminal(*arguments, url=environ["LUXX_URL"], cwd=Path.cwd(), **chosen)


def file_of(folder: Path, text: str) -> str:
    path = folder / "file.yaml"
    path.write_text(text, "utf-8")
    return str(path)


# --- to the end -------------------------------------------------------------------------------------


def test_a_file_becomes_a_room_whose_discussion_is_printed(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    finished = run(server, environ, "room", "run", file_of(tmp_path, room_file("Ann", "Bob")))
    assert (finished.returncode, finished.stdout) == (0, "Ann: I say yes.\n\nBob: I say no.\n\n"), finished
    assert "── round 1 of 1 ──\n" in finished.stderr
    assert finished.stderr.splitlines()[-1] == "completed (rounds) in round 1, 30 tokens"
    again = run(server, environ, "room", "run", "-", given=room_file("Ann", title="From stdin"))
    assert (again.returncode, again.stdout) == (0, "Ann: I say yes.\n\n")


def test_a_goal_is_planned_carried_out_and_its_result_printed(
    server: ServerProcess, environ: dict[str, str]
) -> None:
    finished = run(server, environ, "task", "run", "A report on solar cells")
    assert (finished.returncode, finished.stdout) == (0, "All is done [a].\n"), finished
    lines = finished.stderr.splitlines()
    assert lines[1:5] == ["planning", "the plan has 2 steps:", "  [a] Collect", "  [b] Write (after a)"]
    assert lines[5] == "▶ [a] Collect"
    assert re.fullmatch(r"✓ \[a\] Collect \(\d+\.\d s\)", lines[6])
    assert lines[7] == "1 of 2 steps done, 30 tokens"
    assert lines[-1] == "completed (2 of 2 steps done, 60 tokens)"
    again = run(server, environ, "task", "run", "A report on solar cells")
    assert again.returncode == 0, "the same goal is a new task"


def test_the_events_are_printed_as_lines(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    for command, text, first, last in (
        ("room", room_file("Ann"), "room_started", "room_completed"),
        ("task", task_file(step("a")), "step_start", "task_complete"),
    ):
        finished = run(server, environ, command, "run", "--json", file_of(tmp_path, text))
        assert finished.returncode == 0, finished
        events = [json.loads(line) for line in finished.stdout.splitlines()]
        assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
        assert (events[0]["type"], events[-1]["type"]) == (first, last)


def test_the_exit_code_says_how_it_ended(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    steps = [step("bad"), step("after", "bad"), step("a")]
    failed = run(server, environ, "task", "run", file_of(tmp_path, task_file(*steps)))
    assert failed.returncode == 1
    assert "✗ [bad] Step bad" in failed.stderr
    assert "the key is wrong" in failed.stderr
    assert "– [after] Step after: left out because of [bad]" in failed.stderr
    assert "failed (1 of 3 steps done, 1 failed, 1 left out" in failed.stderr.splitlines()[-1]
    broken = run(server, environ, "room", "run", file_of(tmp_path, room_file("Broken", max_rounds=3)))
    assert broken.returncode == 1
    assert "Broken failed: " in broken.stderr
    assert "No seat of this room can speak" in broken.stderr
    nobody = run(server, environ, "room", "run", file_of(tmp_path, room_file()))
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert nobody.stderr.splitlines()[-1] == "luxx: this room has no seats; add one first"


def test_failed_steps_are_carried_out_again(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    steps = [step("once"), step("after", "once"), step("twice")]
    failed = run(server, environ, "task", "run", file_of(tmp_path, task_file(*steps, name="Fails first")))
    assert failed.returncode == 1
    again = run(server, environ, "task", "run", "Fails first")
    assert again.returncode == 1
    assert "no step of this task is pending" in again.stderr
    retried = run(server, environ, "task", "run", "Fails first", "--retry")
    assert retried.returncode == 0, retried
    assert "▶ [once] Step once, attempt 2" in retried.stderr
    assert "completed (3 of 3 steps done" in retried.stderr.splitlines()[-1]
    refused = run(server, environ, "task", "run", "Fails first", "--retry")
    assert refused.stderr.splitlines()[-1] == "luxx: no step of this task has failed; leave out --retry"


# --- names and files --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_goal_is_stored_with_times_that_order_and_hide_it(
    server: ServerProcess, environ: dict[str, str]
) -> None:
    """`luxx task add`, `set` and `list`."""

    def lines(*arguments: str) -> list[list[str]]:
        done = run(server, environ, "task", *arguments)
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    goal = "Water the plants"
    [added] = lines("add", goal, "--priority", "2", "--start", "2190-12-01T15:00:00Z")
    assert added[1:4] == [goal, "pending", "priority 2"]
    assert added[4].startswith("starts 2190-12-01 ")
    [changed] = lines("set", goal, "--start", "none", "--due", "2190-12-02T12:00Z", "--snooze", "2190-11-30")
    assert [field.split(" 2190")[0] for field in changed[3:]] == ["priority 2", "due", "snoozed until"]
    assert goal not in [line[1] for line in lines("list")]
    assert [goal, "pending", "0/0 steps"] == lines("list", "--snoozed", "--order", "due")[0][1:4]
    for wrong, reason in (
        (["--due", "next week"], "is no time"),
        (["--start", "2020-01-01T00:00Z"], "in the past"),
        ([], "nothing to set"),
    ):
        refused = run(server, environ, "task", "set", goal, *wrong)
        assert (refused.returncode, reason in refused.stderr) == (2, True), refused.stderr


def test_names_are_accepted_where_they_are_of_one(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    for command, text, what in (
        ("room", room_file("Ann", title="Named once"), "rooms"),
        ("task", task_file(step("a"), name="Named once"), "tasks"),
    ):
        file = file_of(tmp_path, text)
        first = run(server, environ, command, "import", file).stdout.split("\t")[0]
        assert f"{first}\tNamed once\t" in run(server, environ, command, "list").stdout
        exported = run(server, environ, command, "export", "named ONCE", "--format", "json").stdout
        assert json.loads(exported)["version"] == 1
        finished = run(server, environ, command, "run", "Named once")
        assert finished.returncode == 0, finished
        assert first in finished.stderr
        second = run(server, environ, command, "import", "-", given=exported).stdout.split("\t")[0]
        ambiguous = run(server, environ, command, "run", "Named once")
        assert (ambiguous.returncode, ambiguous.stderr) == (
            2,
            f"luxx: 2 {what} are named 'Named once'; name one by its id: {second}, {first}\n",
        )
        by_id = run(server, environ, command, "export", first, "-o", str(tmp_path / "out.yaml"))
        assert (by_id.returncode, by_id.stdout) == (0, "")
        assert (tmp_path / "out.yaml").read_text("utf-8").startswith("version: 1\n")


BAD_ROOMS = {
    "empty": ("", "luxx: "),
    "text": ("just a text", "luxx: "),
    "yaml": ("a: [", "not valid YAML or JSON in line 1"),
    "list": ("[1, 2]", "luxx: "),
    "version": (room_file("Ann").replace('"version": 1', '"version": 2'), "$.version"),
    "unknown field": (room_file("Ann", colour="red"), "$.colour: unknown field"),
    "twice": (room_file("Ann", "ann"), "$.agents[1]"),
    "tool": (room_file("Ann").replace('"color"', '"tools": ["nothing"], "color"'), "nothing"),
    "provider": (room_file("Ann").replace('"color"', '"provider": "none", "color"'), "'none'"),
    "agent": (room_file().replace('"agents": []', '"agents": [{"agent": "Nobody"}]'), "'Nobody'"),
    "stop": (room_file("Ann", stop={"phrase": "X", "seat": "Zoe"}), "'Zoe'"),
    "policy": (room_file("Ann", policy="loudest"), "$.policy"),
    "bytes": (b"\xff\xfe\x00", "UTF-8"),
    "large": ("#" * 4_000_001, "larger than 1,000,000 characters"),
}
BAD_TASKS = {
    "empty": ("", "luxx: "),
    "yaml": ("a: [", "not valid YAML or JSON in line 1"),
    "version": (task_file().replace('"version": 1', '"version": "1"'), "$.version"),
    "unknown field": (task_file(step("a", colour="red")), "$.steps[0].colour: unknown field"),
    "circle": (task_file(step("a", "b"), step("b", "a")), "wait for each other"),
    "missing": (task_file(step("a", "z")), "'z'"),
    "twice": (task_file(step("a"), step("a")), "'a'"),
    "tool": (task_file(step("a", required_tools=["nothing"])), "nothing"),
    "agent": (task_file(step("a"), agent="Nobody"), "Nobody"),
    "provider": (task_file(step("a"), provider="none"), "none"),
    "id": (task_file(step("a b")), "$.steps[0].id"),
    "bytes": (b"\xff\xfe\x00", "UTF-8"),
    "large": ("#" * 2_000_001, "larger than 500,000 characters"),
}


SHORT = [("room", "yaml"), ("room", "stop"), ("task", "circle")]


def check_refusals(
    server: ServerProcess,
    environ: dict[str, str],
    folder: Path,
    cases: list[tuple[str, str, str | bytes, str]],
) -> None:
    """Each of these files (command, name, text, a part of the reason) is refused in one sentence."""
    file = folder / "bad.yaml"
    for command, name, text, reason in cases:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        finished = run(server, environ, command, "run", str(file))
        assert (finished.returncode, finished.stdout) == (2, ""), (name, finished)
        (line,) = finished.stderr.splitlines()
        assert line.startswith("luxx: "), name
        assert reason in line, name


def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(
    server: ServerProcess, environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    before = [api.get(path).json()["data"]["total"] for path in ("/chat-rooms", "/tasks")]
    bad = {"room": BAD_ROOMS, "task": BAD_TASKS}
    check_refusals(
        server, environ, tmp_path, [(command, name, *bad[command][name]) for command, name in SHORT]
    )
    assert [api.get(path).json()["data"]["total"] for path in ("/chat-rooms", "/tasks")] == before


@pytest.mark.heavy
@pytest.mark.parametrize(("command", "bad"), [("room", BAD_ROOMS), ("task", BAD_TASKS)])
def test_every_kind_of_file_that_cannot_be_used_is_refused_in_one_sentence(
    server: ServerProcess,
    environ: dict[str, str],
    tmp_path: Path,
    command: str,
    bad: dict[str, tuple[str | bytes, str]],
) -> None:
    before = run(server, environ, command, "list").stdout
    check_refusals(server, environ, tmp_path, [(command, name, *case) for name, case in bad.items()])
    assert run(server, environ, command, "list").stdout == before


@pytest.mark.heavy
def test_what_names_nothing_is_refused_in_one_sentence(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    missing = tmp_path / "none.yaml"
    for command, argument, reason in (
        ("room", "Nobody", "there is no file and no room 'Nobody'"),
        ("task", "Nothing", "there is no file and no task 'Nothing'"),
        ("task", " ", "there is no file and no task ''"),
        ("room", str(missing), f"{missing}: No such file or directory"),
        ("task", str(missing), f"{missing}: No such file or directory"),
        ("room", str(tmp_path), f"{tmp_path}: Is a directory"),
        ("room", "x" * 5000, "there is no file and no room"),
    ):
        finished = run(server, environ, command, "run", argument)
        assert (finished.returncode, finished.stdout) == (2, ""), finished
        (line,) = finished.stderr.splitlines()
        assert line.startswith(f"luxx: {reason}")
    agent = run(server, environ, "task", "run", "--agent", "Nobody", "Do a lot of things")
    assert (agent.returncode, agent.stderr) == (
        2,
        "luxx: there is no agent 'Nobody'; `luxx agent list` lists yours\n",
    )
    assert run(server, environ, "room", "run").returncode == 2
    before = run(server, environ, "task", "list").stdout
    good = file_of(tmp_path, task_file(step("a")))
    for command, *arguments in (
        ("room", "--resume", file_of(tmp_path, room_file("Ann"))),
        ("task", "--resume", good),
        ("task", "--retry", "Do a lot of things"),
        ("task", "--agent", "Basic", good),
    ):
        finished = run(server, environ, command, "run", *arguments)
        assert (finished.returncode, len(finished.stderr.splitlines())) == (2, 1), finished
    assert run(server, environ, "task", "list").stdout == before
    unreachable = run(server, environ, "room", "run", "x", "--url", "http://127.0.0.1:1")
    assert (unreachable.returncode, len(unreachable.stderr.splitlines())) == (1, 1)


# --- people -----------------------------------------------------------------------------------------


def test_a_question_is_answered_in_place_and_asked_again_after_a_wrong_answer(
    environ: dict[str, str], tmp_path: Path
) -> None:
    program = terminal(environ, "task", "run", file_of(tmp_path, task_file(step("ask"), step("a"))))
    program.expect_next("? [ask]: Which colour?")
    program.expect_next("2. blue: like the sea")
    program.expect_next("answer> ")
    program.type("\n")
    program.expect_next("type a number from 1 to 2")
    program.expect_next("answer> ")
    program.type("2\n")
    program.expect_next('"answer":"blue"')
    program.expect_next("✓ [ask]")
    program.expect_next("All is done [a].")
    assert program.end() == 0


@pytest.mark.heavy
def test_the_name_of_a_seat_has_its_color_where_a_terminal_shows_colors(
    environ: dict[str, str], tmp_path: Path
) -> None:
    file = file_of(tmp_path, room_file("Ann"))
    for more, name in (
        ({"TERM": "xterm", "COLORTERM": ""}, "\x1b[1m\x1b[38;5;68mAnn: \x1b[0mI say yes."),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "\x1b[1m\x1b[38;2;47;111;222mAnn: \x1b[0mI say yes."),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "\nAnn: I say yes."),
    ):
        program = terminal({**environ, **more}, "room", "run", file)
        assert program.end() == 0
        assert name.lstrip("\n") in program.shown
        assert more.get("NO_COLOR") is None or "38;" not in program.shown


@pytest.mark.heavy
def test_a_question_that_is_answered_elsewhere_disappears(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    program = terminal(environ, "task", "run", file_of(tmp_path, task_file(step("ask"))))
    program.expect_next("answer> ")
    (question,) = api.get("/questions", params={"status": "open"}).json()["data"]["items"]
    path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
    assert api.post(path, json={"answer": "red"}).is_success
    program.expect_next("As you like.")
    assert program.end() == 0


@pytest.mark.heavy
@pytest.mark.parametrize("cut", [1, 700, 1900])
def test_nothing_is_lost_or_repeated_over_a_connection_that_breaks(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path, cut: int
) -> None:
    with breaking_proxy(server.url, cut) as (url, streams):
        finished = run(
            server,
            {**environ, "LUXX_URL": url},
            "room",
            "run",
            file_of(tmp_path, room_file("Ann", "Long", "Bob")),
        )
    assert (finished.returncode, finished.stdout) == (
        0,
        f"Ann: I say yes.\n\nLong: {LONG}\n\nBob: I say no.\n\n",
    ), finished
    assert finished.stderr.count("── round 1 of 1 ──") == 1
    assert len(streams) > 1, "the line was never broken"


@pytest.mark.heavy
def test_a_permission_takes_only_its_options(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    rules = [{"tool": "file_write", "action": "ask"}]
    assert api.put("/permissions/rules", json=rules).is_success
    program = terminal(environ, "task", "run", file_of(tmp_path, task_file(step("save"))))
    program.expect_next("? [save]: May file_write be run")
    program.expect_next("3. reject")
    for wrong in ("4", "of course", ""):
        program.expect_next("answer> ")
        program.type(f"{wrong}\n")
        program.expect_next("type a number from 1 to 3")
    program.expect_next("answer> ")
    program.type("1\n")
    program.expect_next("It is saved.")
    assert program.end() == 0
    assert api.put("/permissions/rules", json=[]).is_success


@pytest.mark.heavy
def test_a_task_and_a_step_are_approved_or_left_out_in_place(environ: dict[str, str], tmp_path: Path) -> None:
    steps = [
        step("a"),
        step("b", "a", require_approval=True),
        step("c", "b"),
        step("d", require_approval=True),
    ]
    file = file_of(tmp_path, task_file(*steps, require_approval=True))
    program = terminal(environ, "task", "run", file)
    program.expect_next("? May this task run? It has 4 steps.")
    program.expect_next("answer> ")
    program.type("5\n")
    program.expect_next("type a number from 1 to 3")
    program.expect_next("answer> ")
    program.type("1\n")
    program.expect_next("? May [d] Step d begin?")
    program.expect_next("answer> ")
    program.type("approve\n")
    program.expect_next("? May [b] Step b begin?")
    program.expect_next("answer> ")
    program.type("2\n")
    program.expect_next("[c] Step c: left out because of [b]")
    program.expect_next("completed (2 of 4 steps done, 2 left out")
    assert program.end() == 0


def test_approvals_are_given_by_an_option_or_leave_a_script_with_exit_code_3(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    file = file_of(tmp_path, task_file(step("a", require_approval=True), require_approval=True))
    waits = run(server, environ, "task", "run", file)
    assert waits.returncode == 3
    reason = waits.stderr.splitlines()[-1]
    assert re.match(r"the task waits for a person: May this task run\? .*\(POST /tasks/\S+/approve\)", reason)
    (again,) = re.findall(r"`luxx (task run --resume \S+)` follows it again", reason)
    approved = run(server, environ, *again.split(), "--approve")
    assert (approved.returncode, approved.stdout) == (0, "Done.\n"), approved


def test_a_question_without_a_terminal_takes_its_recommended_option_or_leaves_with_exit_code_3(
    server: ServerProcess, environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    asks = run(server, environ, "room", "run", file_of(tmp_path, room_file("Hasty")))
    assert (asks.returncode, asks.stdout) == (0, "Hasty: Blue, then.\n\n"), asks
    assert "? Hasty: Which colour?\n" in asks.stderr
    needs = run(server, environ, "room", "run", file_of(tmp_path, room_file("Asker")))
    assert (needs.returncode, needs.stdout) == (3, "")
    reason = needs.stderr.splitlines()[-1]
    found = re.match(
        r"the room waits for a person: Asker: Which colour\? \(POST (\S+)\); `luxx (.*)`", reason
    )
    assert found is not None, reason
    assert api.post(found[1], json={"answer": "red"}).is_success
    followed = run(server, environ, *found[2].split())
    assert (followed.returncode, followed.stdout) == (0, "Asker: As you like.\n\n"), followed


@pytest.mark.heavy
def test_what_others_say_during_a_question_is_shown_after_it(environ: dict[str, str], tmp_path: Path) -> None:
    program = terminal(
        environ, "room", "run", file_of(tmp_path, room_file("Asker", "Long", policy="parallel"))
    )
    program.expect_next("? Asker: Which colour?")
    program.expect_next("answer> ")
    program.type("9 lives\n")
    program.expect_next("As you like.")
    program.expect_next(f"Long: {LONG}")
    assert program.end() == 0
    assert program.shown.index("answer> ") < program.shown.index("Long: ")


@pytest.mark.heavy
def test_a_person_speaks_in_a_room_and_gives_the_floor(
    environ: dict[str, str], model: ScriptedProvider, tmp_path: Path
) -> None:
    file = file_of(tmp_path, room_file("Reader", "Ann", policy="manual", max_rounds=5))
    program = terminal(environ, "room", "run", file)
    program.expect_next("type a line to say it")
    program.expect_next("? Who speaks next?")
    program.expect_next("answer> ")
    program.type("9\n")
    program.expect_next("type a number from 1 to 3")
    program.expect_next("answer> ")
    program.type("1\n")
    program.expect_next("I read.")
    program.type("Say hello, please\n")
    model.release("spoken")
    program.expect_next("admin: Say hello, please")
    program.expect_next("? Who speaks next?")
    program.expect_next("answer> ")
    program.type("Reader\n")
    program.expect_next("Reader: Hello!")
    program.expect_next("? Who speaks next?")
    program.expect_next("3. end: end the room")
    program.expect_next("answer> ")
    program.type("3\n")
    program.expect_next("admin ends the room")
    program.expect_next("completed (person)")
    assert program.end() == 0
    assert "[admin] Say hello, please" in model.requests[-1].body.decode()


@pytest.mark.heavy
def test_characters_that_the_output_lacks_are_replaced(environ: dict[str, str], tmp_path: Path) -> None:
    finished = subprocess.run(
        ["luxx", "room", "run", file_of(tmp_path, room_file("Ann"))],
        env={**environ, "PYTHONIOENCODING": "ascii"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (0, b"Ann: I say yes.\n\n"), finished
    assert b"?? round 1 of 1 ??" in finished.stderr


# --- stopping and going on --------------------------------------------------------------------------


def test_ctrl_c_pauses_a_room_and_its_id_resumes_it(
    server: ServerProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    program = terminal(environ, "room", "run", file_of(tmp_path, room_file("Halting", "Ann")))
    program.expect_next("Halting: ")
    program.expect_next("Here it begins")
    program.type("\x03")
    program.expect_next("admin pauses the room")
    program.expect_next("Halting was cut")
    program.expect_next("paused; `luxx room run ")
    assert program.end() == 130
    (room_id,) = re.findall(r"paused; `luxx room run --resume (\S+)` resumes the room", program.shown)
    resumed = run(server, environ, "room", "run", "--resume", room_id)
    assert (resumed.returncode, resumed.stdout) == (0, "Halting: Here it ends.\n\nAnn: I say yes.\n\n"), (
        resumed
    )
    whole = run(server, environ, "room", "run", "--resume", room_id)
    assert whole.returncode == 0
    assert whole.stdout == "Halting: Here it begins\n\n" + resumed.stdout, whole
    idle = run(server, environ, "room", "import", given=room_file("Ann")).stdout.split("\t")[0]
    refused = run(server, environ, "room", "run", "--resume", idle)
    assert refused.returncode == 1
    assert "this room has not been started" in refused.stderr.splitlines()[-1]


@pytest.mark.heavy
def test_ctrl_c_pauses_a_task_and_its_id_resumes_it(
    server: ServerProcess, environ: dict[str, str], model: ScriptedProvider, tmp_path: Path
) -> None:
    program = terminal(environ, "task", "run", file_of(tmp_path, task_file(step("slow"))))
    program.expect_next("▶ [slow] Step slow")
    # Before its call, the next attempt would be the first call, which waits.
    wait_for(lambda: was_called_for(model, "slow"))
    program.type("\x03")
    program.expect_next("[slow] Step slow was cut")
    program.expect_next("paused; `luxx task run ")
    assert program.end() == 130
    (task_id,) = re.findall(r"paused; `luxx task run --resume (\S+)` resumes the task", program.shown)
    resumed = run(server, environ, "task", "run", task_id)
    assert (resumed.returncode, resumed.stdout) == (0, "Whole.\n"), resumed
    assert "▶ [slow] Step slow, attempt 2" in resumed.stderr
    assert "was cut" not in resumed.stderr, "what was shown before the pause is not shown again"


@pytest.mark.heavy
def test_ctrl_d_leaves_a_room_that_goes_on(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    program = terminal(environ, "room", "run", file_of(tmp_path, room_file("Slow")))
    program.expect_next("Here it begins")
    lines = [f"line {number}" for number in range(5)]
    program.type("".join(f"{line}\n" for line in lines))
    (room,) = [one for one in api.get("/chat-rooms").json()["data"]["items"] if one["status"] == "running"]
    path = f"/chat-rooms/{room['id']}/messages"
    wait_for(lambda: api.get(path).json()["data"]["total"] >= len(lines))
    messages = api.get(path).json()["data"]["items"]
    assert [one["content"] for one in reversed(messages)] == lines, "what is typed is said in its order"
    program.type("\x04")
    program.expect_next("left; the room goes on, `luxx room run ")
    assert program.end() == 3
    (room_id,) = re.findall(r"`luxx room run --resume (\S+)` follows it", program.shown)
    assert api.get(f"/chat-rooms/{room_id}").json()["data"]["status"] == "running"
    assert api.post(f"/chat-rooms/{room_id}/finish").is_success


def test_a_closed_pipe_ends_the_command_quietly_and_the_room_goes_on(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    file = file_of(tmp_path, room_file("Ann", "Late", "Bob", max_rounds=50))
    process = subprocess.Popen(
        ["luxx", "room", "run", file], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "Ann: I say yes.\n"
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE_SECONDS) == 141
    assert errors.splitlines()[-1].startswith("luxx: the output was closed; the room goes on, see `luxx room")
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    (room_id,) = re.findall(r"`luxx room run --resume (\S+)`", errors)
    assert api.post(f"/chat-rooms/{room_id}/finish").is_success


KILLED = Script(
    rules=[
        says("Ann", "I say yes."),
        says("Bob", "I say no."),
        Rule(
            when=When(system="You are Late in", call=1),
            reply=[Text(text="one two three "), Gate(name="never")],
        ),
        Rule(when=When(system="You are Late in"), reply=[Text(text="one two three four"), USAGE]),
        does("a", Text(text="Facts.")),
        Rule(when=When(user=r"Your step \[b\]", call=1), reply=[Text(text="Half"), Gate(name="never")]),
        does("[bc]", Text(text="Whole.")),
        Rule(when=When(system="Write its final result"), reply=[Text(text="All is done [a]."), USAGE]),
    ]
)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "text", "stop_at", "printed"),
    [
        (
            "room",
            room_file("Ann", "Late", "Bob"),
            "one two three ",
            "Ann: I say yes.\n\nLate: one two three four\n\nBob: I say no.\n\n",
        ),
        ("task", task_file(step("a"), step("b", "a"), step("c", "b")), "[b] Step b", "All is done [a].\n"),
    ],
    ids=["room", "task"],
)
def test_nothing_is_lost_or_repeated_when_the_server_is_killed_and_starts_again(
    tmp_path: Path, kind: str, text: str, stop_at: str, printed: str
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with scripted_models(KILLED) as model:
        server = ServerProcess(tmp_path, **model_settings(model.url), LUXX_ADMIN_PASSWORD="")
        server.command = ("serve", "--port", str(port))
        output = tmp_path / "output"
        with server, output.open("wb") as stdout, (tmp_path / "errors").open("wb") as stderr:
            process = subprocess.Popen(
                ["luxx", kind, "run", file_of(tmp_path, text)],
                env=plain_environ(LUXX_URL=server.url),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
            shown = output if kind == "room" else tmp_path / "errors"
            wait_for(lambda: stop_at in shown.read_text("utf-8"))
            if kind == "task":
                # Its step begins before its call; after that, the next attempt would be the first call.
                wait_for(lambda: was_called_for(model, "b"))
            server.kill()
            server.start()
            assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "errors").read_text("utf-8")
    assert output.read_text("utf-8") == printed
    errors = (tmp_path / "errors").read_text("utf-8")
    assert errors.count("▶ [a] Step a\n") == (kind == "task")
    assert errors.count("── round 1 of 1 ──\n") == (kind == "room")


def was_called_for(model: ScriptedProvider, step_id: str) -> bool:
    return any(f"Your step [{step_id}]" in str(request.json) for request in model.requests)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)


# --- the examples -----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_demo_runs_a_room_and_a_task_makes_artifacts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environ = plain_environ(TMPDIR=str(tmp_path), LUXX_URL="http://127.0.0.1:1", OPENAI_API_KEY="sk-unused")
    finished = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished
    for name in ("Planner", "Treasurer", "Guest", "Editor"):
        assert finished.stdout.count(f"\n{name}: ") + finished.stdout.startswith(f"{name}: ") == 2
    assert "AGREED\n" in finished.stdout
    assert "The station pays off" in finished.stdout
    assert "6 of 6 steps done" in finished.stderr
    gallery = [line.split("\t")[1:] for line in finished.stdout.splitlines() if "\tversion 1\t" in line]
    assert sorted(gallery) == [
        ["ppt", "version 1", "4 pages", "Open day of the observatory"],
        ["report", "version 1", "4 pages", "A solar station on the balcony"],
    ]
    assert finished.stdout.endswith(
        "\nOpen day of the observatory.pptx\nA solar station on the balcony.pdf\n"
    )
    assert [*tmp_path.iterdir()] == []
