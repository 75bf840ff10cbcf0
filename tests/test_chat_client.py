"""`luxx chat`: how it renders frames, and its behaviour against a real server, also if the
connection breaks.
"""

import json
import re
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from api.server_process import ServerProcess, model_settings
from breaking_proxy import breaking_proxy
from forked_luxx import run_luxx
from process_environment import plain_environ, scripted_models
from screen_terminal import PATIENCE_SECONDS

from luxx.app.cli.menu import FrameOption, FrameQuestion, parse_answer
from luxx.app.cli.runs.answer import AnswerTranscript
from luxx.app.cli.runs.transcript import FollowedRun, FrameStep, RunFrame
from luxx.app.cli.screen import Piece, PieceKind
from luxx.providers.scripted import Call, Finish, Gate, Rule, Script, Text, Thinking, When

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"

# --- frames to output -------------------------------------------------------------------------------


def delta(index: int, text: str, kind: str = "text") -> RunFrame:
    step = FrameStep(index=index, type=kind, status="running", delta=text)
    return RunFrame(type="process_step", step=step)


def closed_step(index: int, text: str, kind: str = "text", seq: int = 0) -> RunFrame:
    status = "done" if seq else "running"
    step = FrameStep(index=index, type=kind, status=status, content=text)
    return RunFrame(type="process_step", seq=seq, step=step)


def run_started() -> RunFrame:
    return RunFrame(type="run", run=FollowedRun(id="r"))


def shown_text(transcript: AnswerTranscript, frames: list[RunFrame]) -> str:
    pieces = [piece for frame in frames for piece in transcript.receive(frame)]
    return "".join(piece.text for piece in pieces if piece.kind is PieceKind.TEXT)


def test_deltas_are_shown_as_they_come_and_the_closing_step_adds_nothing() -> None:
    frames = [run_started(), delta(0, "Hel"), delta(0, "lo"), closed_step(0, "Hello", seq=1)]
    assert shown_text(AnswerTranscript("c"), frames) == "Hello"


def test_the_steps_of_a_plan_are_lines_and_their_texts_no_part_of_the_answer() -> None:
    step = {"id": "a", "name": "Revenue", "goal": "", "depends_on": []}
    events: list[dict[str, object]] = [
        {"type": "planning", "step_id": "task:plan-1", "attempt": 1},
        {"type": "plan_created", "step_id": "task:plan-1", "steps": [step]},
        {"type": "step_start", "step_id": "a", "name": "Revenue", "attempt": 1},
        {"type": "process_step", "step_id": "a", "step": {"index": 0, "type": "text", "delta": "figures"}},
        {"type": "step_complete", "step_id": "a", "status": "completed", "duration_ms": 1200},
    ]
    frames = [run_started(), *(msgspec.convert(event, RunFrame) for event in events)]
    frames += [delta(0, "Hel"), delta(0, "lo"), closed_step(0, "Hello", seq=1)]
    transcript = AnswerTranscript("c")
    pieces = [piece for frame in frames for piece in transcript.receive(frame)]
    assert [piece.text.strip() for piece in pieces if piece.kind is not PieceKind.TEXT] == [
        "planning", "the plan has 1 step:", "[a] Revenue", "▶ [a] Revenue", "✓ [a] Revenue (1.2 s)",
    ]  # fmt: skip
    assert "".join(piece.text for piece in pieces if piece.kind is PieceKind.TEXT) == "Hello"


def test_a_line_says_which_skill_or_agent_acts_and_why() -> None:
    skill: dict[str, object] = {"type": "skill_activated", "name": "pdf", "score": None}
    agent: dict[str, object] = {"type": "subagent_assigned", "agent_name": "Coder", "status": "running"}
    events: list[dict[str, object]] = [
        agent | {"by": "router", "score": 8.27, "subagent_run_id": "r"},
        skill | {"by": "router", "score": 6.0},
        skill | {"by": "person"},
        skill | {"by": "model"},
        agent | {"by": "model", "subagent_run_id": "other"},
    ]
    frames = [msgspec.convert(event | {"seq": at}, RunFrame) for at, event in enumerate(events, 1)]
    transcript = AnswerTranscript("c")
    notes = [piece.text.strip() for frame in frames for piece in transcript.receive(frame)]
    assert notes == [
        "The agent Coder answers: the words of the message ask for it (score 8.3).",
        "The skill pdf is active: the words of the message ask for it (score 6.0).",
        "The skill pdf is active.",
    ]
    assert transcript.subagents == {"other"}


def test_a_snapshot_after_attaching_again_shows_only_what_was_missed() -> None:
    frames = [
        run_started(),
        delta(0, "Hel"),
        run_started(),
        closed_step(0, "Hello wo"),
        delta(0, "rld"),
        closed_step(0, "Hello world", seq=1),
    ]
    assert shown_text(AnswerTranscript("c"), frames) == "Hello world"


def test_a_step_that_closed_during_a_broken_connection_shows_its_rest() -> None:
    assert (
        shown_text(
            AnswerTranscript("c"),
            [run_started(), delta(0, "Hel"), run_started(), closed_step(0, "Hello", seq=1)],
        )
        == "Hello"
    )


def test_events_up_to_the_last_id_are_not_processed_twice() -> None:
    transcript = AnswerTranscript("c")
    assert (
        shown_text(
            transcript,
            [run_started(), closed_step(0, "Hello", seq=4), run_started(), closed_step(0, "Hello", seq=4)],
        )
        == "Hello"
    )
    assert transcript.last_seq == 4


def test_a_step_made_again_alike_is_not_repeated_on_the_screen() -> None:
    frames = [
        run_started(),
        delta(0, "Hello wo"),
        run_started(),
        delta(0, "Hel"),
        delta(0, "lo world"),
        closed_step(0, "Hello world", seq=2),
    ]
    assert shown_text(AnswerTranscript("c"), frames) == "Hello world"


def test_a_step_made_again_differently_is_announced_and_shown_whole() -> None:
    transcript = AnswerTranscript("c")
    shown_text(transcript, [run_started(), delta(0, "Hello"), run_started()])
    assert transcript.receive(delta(0, "Good day")) == [
        Piece(PieceKind.NOTE, "[the server restarted this step]"),
        Piece(PieceKind.TEXT, "Good day"),
    ]


def test_a_tool_call_is_printed_once_with_its_arguments() -> None:
    def call(status: str, seq: int, **more: Any) -> RunFrame:
        step = FrameStep(index=1, type="tool_call", name="python_eval", status=status, **more)
        return RunFrame(type="process_step", seq=seq, step=step)

    transcript = AnswerTranscript("c")
    frames = [
        call("pending", 0, delta='{"expr'),
        call("pending", 1, arguments='{"expression":"6*7"}'),
        call("running", 2, arguments='{"expression":"6*7"}'),
        call("done", 3, arguments='{"expression":"6*7"}'),
    ]
    notes = [piece.text for frame in frames for piece in transcript.receive(frame)]
    assert notes == ['→ python_eval {"expression":"6*7"}']


def test_an_error_and_the_end_are_remembered() -> None:
    transcript = AnswerTranscript("c")
    transcript.receive(RunFrame(type="error", seq=1, message="no key"))
    transcript.receive(RunFrame(type="done", seq=2, status="failed"))
    assert (transcript.error, transcript.status, transcript.has_ended) == ("no key", "failed", True)


# --- against a real server --------------------------------------------------------------------------

ASK = Call(
    name="ask_clarification",
    arguments={
        "question_type": "scope",
        "question": "Which colour?",
        "options": [{"label": "red"}, {"label": "blue", "description": "like the sea"}],
    },
)
DELEGATE = Call(name="delegate", arguments={"task": "ask for it", "system_prompt": "the hand"})
SCRIPT = Script(
    rules=[
        Rule(when=When(system="the hand", has_tool_result=False), reply=[ASK]),
        Rule(when=When(system="the hand"), reply=[Text(text="Blue.")]),
        Rule(when=When(user="^delegate", has_tool_result=False), reply=[DELEGATE]),
        Rule(when=When(user="^delegate"), reply=[Text(text="It wants blue.")]),
        Rule(when=When(user="ask me", has_tool_result=False), reply=[ASK]),
        Rule(when=When(user="ask me", has_tool_result=True), reply=[Text(text="As you like.")]),
        Rule(when=When(user="^count"), reply=[Thinking(text="Counting."), Text(text=LONG)], delay=0.02),
        Rule(
            when=When(user="^calculate", has_tool_result=False),
            reply=[Call(name="python_eval", arguments={"expression": "6*7"})],
        ),
        Rule(when=When(user="^calculate", has_tool_result=True), reply=[Text(text="It is 42.")]),
        Rule(
            when=When(user="^wait"),
            reply=[Text(text="Here it begins "), Gate(name="never"), Text(text="end")],
        ),
        Rule(when=When(user="^break"), status=401, message="the key is wrong"),
        Rule(when=When(user="^filter"), reply=[Text(text="It be"), Finish(reason="content_filter")]),
        Rule(
            when=When(user=r"^explain\n\nthe first line\nthe second line$"),
            reply=[Text(text="You gave two lines.")],
        ),
    ]
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with (
        scripted_models(SCRIPT) as provider,
        ServerProcess(folder, **model_settings(provider.url), LUXX_ADMIN_PASSWORD="") as running,
    ):
        yield running


def run_chat(url: str, *arguments: str, given: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    command = ("chat", "--url", url, *arguments)
    return run_luxx(*command, cwd=Path.cwd(), env=plain_environ(**environ), input=given)


def test_a_temporary_chat_is_deleted_when_the_command_ends(server: ServerProcess) -> None:
    finished = run_chat(server.url, "--temporary", "count", "please")
    assert (finished.returncode, finished.stdout) == (0, LONG + "\n")
    assert "not remembered, and deleted when this command ends or after 60 minutes" in finished.stderr
    assert "the temporary chat is deleted" in finished.stderr
    with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database:
        left = database.execute("SELECT 1 FROM conversations WHERE temporary_minutes IS NOT NULL")
        assert left.fetchall() == []


def test_one_message_is_answered_on_stdout_and_the_rest_printed_on_stderr(server: ServerProcess) -> None:
    finished = run_chat(server.url, "count", "please")
    assert (finished.returncode, finished.stdout) == (0, LONG + "\n")
    assert re.search(r"^thought for \d\.\d s$", finished.stderr, re.MULTILINE)
    assert "Counting." not in finished.stderr
    assert "default password" in finished.stderr


def test_a_message_may_come_from_stdin_and_tools_are_shown(server: ServerProcess) -> None:
    finished = run_chat(server.url, "--tools", given="calculate 6 times 7")
    assert (finished.returncode, finished.stdout) == (0, "It is 42.\n")
    assert '→ python_eval {"expression":"6*7"}' in finished.stderr
    assert re.search(r"✓ python_eval \(\d+ ms\) .*42", finished.stderr)


@pytest.mark.heavy
def test_a_failed_answer_and_a_refusal_are_one_sentence_and_exit_code_1(server: ServerProcess) -> None:
    failed = run_chat(server.url, "break")
    assert failed.returncode == 1
    assert "the key is wrong" in failed.stderr.splitlines()[-1]
    refused = run_chat(server.url, "--username", "nobody", "hello", LUXX_PASSWORD="wrong-password")
    assert (refused.returncode, refused.stderr) == (1, "luxx: wrong username or password\n")
    missing = run_chat(server.url, "--conversation", "none", "hello")
    assert missing.returncode == 1
    assert len(missing.stderr.splitlines()) == 2


def test_an_answer_that_a_filter_stopped_says_so(server: ServerProcess) -> None:
    filtered = run_chat(server.url, "filter this")
    assert (filtered.returncode, filtered.stdout.strip()) == (0, "It be")
    assert "the answer was stopped by a content filter of the provider" in filtered.stderr


def test_no_server_is_one_sentence(server: ServerProcess) -> None:
    finished = run_chat("http://127.0.0.1:1", "hello")
    assert finished.returncode == 1
    assert finished.stderr.startswith("luxx: no server answers at http://127.0.0.1:1")
    assert run_chat("nonsense", "hello").returncode == 1


@pytest.mark.heavy
@pytest.mark.parametrize("cut", [1, 700, 1900])
def test_nothing_is_lost_or_repeated_over_a_connection_that_breaks(server: ServerProcess, cut: int) -> None:
    with breaking_proxy(server.url, cut) as (url, streams):
        finished = run_chat(url, "count", "again")
    assert (finished.returncode, finished.stdout) == (0, LONG + "\n")
    assert finished.stderr.count("thought for") == 1
    assert len(streams) > 1, "the line was never broken"


def test_a_question_without_a_terminal_is_said_with_how_to_answer_and_can_be_asked_again(
    server: ServerProcess,
) -> None:
    asked = run_chat(server.url, "ask me")
    assert (asked.returncode, asked.stdout) == (3, "")
    assert "? Which colour?\n  1. red\n  2. blue: like the sea\n" in asked.stderr
    found = re.search(
        r"`luxx chat --conversation (\S+)` at a terminal asks you, or give it with POST (\S+)\n", asked.stderr
    )
    assert found is not None, asked.stderr
    again = run_chat(server.url, "--conversation", found[1])
    assert again.returncode == 3
    assert "> ask me\n" in again.stderr
    signed_in = {"username": "admin", "password": "admin123"}
    answer = httpx.post(f"{server.url}/auth/login", json=signed_in, trust_env=False)
    headers = {"authorization": f"Bearer {answer.json()['data']['access_token']}"}
    path = f"{server.url}{found[2]}"
    assert httpx.post(path, json={"answer": "red"}, headers=headers, trust_env=False).is_success
    followed = run_chat(server.url, "--conversation", found[1])
    assert (followed.returncode, followed.stdout.splitlines()[-1]) == (0, "As you like.")


def test_a_message_is_followed_by_what_is_on_stdin(server: ServerProcess) -> None:
    finished = run_chat(server.url, "explain", given="the first line\nthe second line\n")
    assert (finished.returncode, finished.stdout) == (0, "You gave two lines.\n"), finished
    nothing = run_chat(server.url, given="\n")
    assert (nothing.returncode, nothing.stderr) == (
        1,
        "luxx: there is no message; write it after the command, or to stdin\n",
    )


def test_the_events_are_printed_as_lines_for_scripts(server: ServerProcess) -> None:
    finished = run_chat(server.url, "--json", "--tools", "calculate")
    assert finished.returncode == 0, finished
    state, *events = [json.loads(line) for line in finished.stdout.splitlines()]
    assert (state["type"], state["run"]["kind"]) == ("run", "chat")
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
    assert events[-1]["type"] == "done"
    conversation = state["run"]["subject_id"]
    again = run_chat(server.url, "--json", "--conversation", conversation, "calculate")
    assert json.loads(again.stdout.splitlines()[0])["run"]["subject_id"] == conversation


OPTIONS = [FrameOption(label="red"), FrameOption(label="blue", is_recommended=True)]


@pytest.mark.parametrize(
    ("multiple", "line", "answer"),
    [
        (False, "1", "red"),
        (False, " 2 ", "blue"),
        (False, "3", "3"),
        (False, "1 2", "1 2"),
        (False, "green", "green"),
        (False, "", "blue"),
        (True, "", ["blue"]),
        (True, "1, 2", ["red", "blue"]),
        (True, "1 3", "1 3"),
        (True, "2", "blue"),
        (False, "²", "²"),
    ],
)
def test_what_is_typed_becomes_an_answer(multiple: bool, line: str, answer: Any) -> None:
    question = FrameQuestion(question_id="q", prompt="Which?", options=OPTIONS, multiple=multiple)
    assert parse_answer(question, line) == answer


def test_an_empty_input_is_no_answer_without_a_recommended_option() -> None:
    assert parse_answer(FrameQuestion(question_id="q", prompt="Which?"), " ") is None


# --- against a fake server --------------------------------------------------------------------------

Answers = Callable[[str, str, str], tuple[int, Any]]


@contextmanager
def fake_server(answers: Answers) -> Iterator[tuple[str, list[str]]]:
    """`answers(request line, bearer, body)` gives status and JSON; a string is sent as an event stream."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            asked.append(f"{self.command} {self.path}")
            status, answer = answers(asked[-1], self.headers.get("authorization", ""), body)
            sent = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}", asked
    finally:
        served.shutdown()
        served.server_close()
        thread.join(PATIENCE_SECONDS)


def tokens(name: str) -> dict[str, Any]:
    return {"success": True, "data": {"access_token": name, "refresh_token": f"refresh-{name}"}}


def test_an_expired_token_is_refreshed_and_the_request_asked_again() -> None:
    def answers(request: str, bearer: str, body: str) -> tuple[int, Any]:
        match request.partition("?")[0]:
            case "POST /auth/login":
                return 200, tokens("old")
            case "POST /auth/refresh":
                assert json.loads(body) == {"refresh_token": "refresh-old"}
                return 200, tokens("new")
            case _ if bearer != "Bearer new":
                detail = {"kind": "token_expired"}
                return 401, {"success": False, "error": "expired", "code": 401, "detail": detail}
            case "POST /conversations":
                return 201, {"success": True, "data": {"id": "c"}}
            case "GET /conversations/c/execution-status":
                return 200, {"success": True, "data": {"run": None}}
            case _:
                return 200, 'data: {"type":"run","run":{"id":"r"}}\n\nid: 1\ndata: {"type":"done"}\n\n'

    with fake_server(answers) as (url, server):
        assert run_chat(url, "hello").returncode == 0
    assert server.count("POST /auth/refresh") == 1
    assert server.count("POST /messages/stream") == 1


def test_a_refused_message_is_never_sent_twice() -> None:
    def answers(request: str, bearer: str, body: str) -> tuple[int, Any]:
        match request.partition("?")[0]:
            case "POST /auth/login":
                return 200, tokens("t")
            case "GET /conversations":
                return 200, {"success": True, "data": {"items": [{"id": "c"}]}}
            case "GET /conversations/c/execution-status":
                return 200, {"success": True, "data": {"run": {"id": "an older run"}}}
            case _:
                return 200, ""

    with fake_server(answers) as (url, server):
        finished = run_chat(url, "--conversation", "c", "hello")
    assert finished.returncode == 1
    assert finished.stderr.endswith(
        "luxx: the connection was lost before the server accepted the message; send it again\n"
    )
    assert server.count("POST /messages/stream") == 1


def test_an_address_of_another_server_is_reported() -> None:
    with fake_server(lambda request, bearer, body: (404, "<h1>Not here</h1>")) as (url, _):
        finished = run_chat(url, "--username", "me", "hello", LUXX_PASSWORD="secret-word")
    assert finished.stderr == f"luxx: {url} answered 404 and is not a Luxx server; is the address right?\n"


def test_the_password_is_never_shown(tmp_path: Path, server: ServerProcess) -> None:
    finished = run_chat(server.url, "--username", "me", "hello", LUXX_PASSWORD="secret-word")
    assert "secret-word" not in finished.stdout + finished.stderr
