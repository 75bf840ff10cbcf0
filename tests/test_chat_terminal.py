"""`luxx chat` at a terminal, as a person sees it: editing, menus, Ctrl-C, history, a lost server."""

import base64
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from breaking_proxy import breaking_proxy
from command_line import register
from process_environment import free_port, scripted_models
from screen_terminal import ScreenTerminal

from luxx.app.cli.runs.transcript import SUBAGENT_POLL_SECONDS
from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When

ASK = Call(
    name="ask_clarification",
    arguments={
        "question_type": "scope",
        "question": "Which colour?",
        "options": [{"label": "red"}, {"label": "blue", "description": "like the sea"}],
        "required": True,
    },
)
WRITE = Call(name="file_write", arguments={"path": "note.txt", "content": "milk"})
DELEGATE = Call(name="delegate", arguments={"task": "ask for it", "system_prompt": "the hand"})
MARKDOWN = """## A title

Some **bold** text and `code`.

1. first
2. second

| name | value |
| --- | --- |
| a | 1 |

```python
print("hello")
```

The end."""
WIDE = "你好，世界！这是一个很长的句子，用来检查终端里的换行是否正确，因为每个汉字占两列。😀 done"
LIST = "\n".join(f"- line {number}" for number in range(60))
SCRIPT = Script(
    models=["scripted", "other"],
    rules=[
        Rule(when=When(system="the hand", has_tool_result=False), reply=[ASK]),
        Rule(when=When(system="the hand"), reply=[Text(text="Blue.")]),
        Rule(when=When(user="^delegate", has_tool_result=False), reply=[DELEGATE]),
        Rule(when=When(user="^delegate"), reply=[Text(text="It wants blue.")]),
        Rule(when=When(user="^ask me", has_tool_result=False), reply=[ASK]),
        Rule(when=When(user="^ask me"), reply=[Text(text="As you like.")]),
        Rule(when=When(user="^save", has_tool_result=False), reply=[WRITE]),
        Rule(when=When(user="^save"), reply=[Text(text="It is saved.")]),
        Rule(when=When(user="^show"), reply=[Thinking(text="How to show it?"), Text(text=MARKDOWN)]),
        Rule(when=When(user="^wide"), reply=[Text(text=WIDE)]),
        Rule(when=When(user="^long"), reply=[Text(text=LIST)], delay=0.005),
        Rule(when=When(user="^wait"), reply=[Text(text="Here it begins "), Gate(name="never")]),
        Rule(
            when=When(user="^pause"), reply=[Text(text="Here it pauses "), Gate(name="go"), Text(text="on.")]
        ),
        Rule(when=When(user="^steer"), reply=[Text(text="a\x1b[2Jb\rc")]),
        Rule(reply=[Text(text="Hello.")]),
    ],
)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    with scripted_models(SCRIPT) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(model: ScriptedProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    more = {"LUXX_AUTH__DEFAULT_PERMISSION_LEVEL": "3"}
    with ServerProcess(tmp_path_factory.mktemp("server"), **model_settings(model.url), **more) as running:
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    """Signed in as a new user."""
    name, token = register(server)
    headers = {"authorization": f"Bearer {token}", "x-name": name}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30) as client:
        yield client


Chat = Callable[..., ScreenTerminal]


@pytest.fixture
def chat(server: ServerProcess, api: httpx.Client, tmp_path: Path) -> Iterator[Chat]:
    """Starts `luxx chat` as that user, with files of its own."""
    started: list[ScreenTerminal] = []

    def start(*arguments: str, **options: Any) -> ScreenTerminal:
        environ = {
            "LUXX_TOKEN": api.headers["authorization"].removeprefix("Bearer "),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **options,
        }
        terminal = ScreenTerminal("chat", *arguments, url=server.url, cwd=server.folder, **environ)
        started.append(terminal)
        return terminal

    yield start
    for terminal in started:
        terminal.kill()


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.heavy
def test_a_file_that_no_model_can_read_is_refused_and_the_message_kept(
    chat: Chat, model: ScriptedProvider, tmp_path: Path
) -> None:
    (tmp_path / "data.bin").write_bytes(b"\0\1\2\3")
    (tmp_path / "dot.png").write_bytes(PIXEL)
    terminal = chat()
    terminal.expect_prompt()
    terminal.type(f"/attach {tmp_path}/data.bin\r")
    terminal.expect("the next message has data.bin")
    terminal.expect_prompt()
    terminal.type("what is it\r")
    terminal.expect("error: ")
    terminal.wait_for(lambda: terminal.text.splitlines()[-1] == "> what is it", "the message, kept")
    terminal.type("\x15/attach none\r")
    terminal.expect("no file is attached")
    terminal.expect_prompt()
    # A skill that is not there is refused in the same way.
    terminal.type("/skill ghost\r")
    terminal.expect("the next message activates ghost")
    terminal.expect_prompt()
    terminal.type("what is it\r")
    terminal.expect("no skill named ghost")
    terminal.wait_for(lambda: terminal.text.splitlines()[-1] == "> what is it", "the message, kept again")
    terminal.type("\x15/skill none\r")
    terminal.expect("no skill is named")
    terminal.expect_prompt()
    terminal.type(f"/attach {tmp_path}/dot.png\r")
    terminal.expect("the next message has dot.png")
    terminal.expect_prompt()
    terminal.type("what is it\r")
    terminal.expect("Hello.")
    assert "image_url" in str(model.requests[-1].json["messages"][-1]["content"])


def sent_text(model: ScriptedProvider) -> str:
    """The last message of the last request to the model."""
    return str(model.requests[-1].json["messages"][-1]["content"])


def ask_before_writing(api: httpx.Client) -> None:
    rules = [{"tool": "file_write", "action": "ask"}]
    assert api.put("/permissions/rules", json=rules).is_success


# --- typing -----------------------------------------------------------------------------------------


def test_a_line_is_edited_and_what_is_pasted_is_one_message(chat: Chat, model: ScriptedProvider) -> None:
    terminal = chat()
    terminal.expect_prompt()
    terminal.type("hellp\x7fo\x01Oh, \x05!\r")
    terminal.expect("Hello.")
    terminal.expect_prompt()
    assert sent_text(model) == "Oh, hello!"
    lines = [f"pasted line {number}" for number in range(30)]
    terminal.paste("\n".join(lines))
    terminal.expect("pasted line 29")
    before = len(model.requests)
    terminal.type("\r")
    terminal.expect("Hello.", count=2)
    terminal.expect_prompt()
    assert sent_text(model) == "\n".join(lines)
    assert len(model.requests) == before + 1
    terminal.type("\x04")
    assert terminal.end() == 0


@pytest.mark.heavy
def test_a_message_of_several_lines_is_typed_and_found_in_the_history(
    chat: Chat, model: ScriptedProvider, tmp_path: Path
) -> None:
    terminal = chat()
    terminal.expect_prompt()
    terminal.type("one\\\rtwo\x1b\rthree")
    terminal.expect("… three")
    terminal.type("\r")
    terminal.expect("Hello.")
    terminal.expect_prompt()
    assert sent_text(model) == "one\ntwo\nthree"
    terminal.type("/exit\r")
    assert terminal.end() == 0
    file = tmp_path / "state" / "luxx" / "chat-history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = chat()
    again.expect_prompt()
    again.type("\x1b[A\x1b[A")
    again.expect("… three")
    again.type("\r")
    again.expect("Hello.")
    assert sent_text(model) == "one\ntwo\nthree"


# --- answers ----------------------------------------------------------------------------------------


def test_an_answer_is_rendered_with_its_thinking_folded_and_its_tools_as_cards(
    chat: Chat, api: httpx.Client
) -> None:
    ask_before_writing(api)
    terminal = chat("--tools")
    terminal.expect_prompt()
    terminal.type("show me\r")
    terminal.expect("The end.")
    terminal.expect_prompt()
    shown = terminal.text
    assert re.search(
        r"▸ thought for \d\.\d s\nA title\n\nSome bold text and code\.\n\n 1 first\n 2 second", shown
    )
    assert 'print("hello")' in shown
    assert "**" not in shown
    assert "How to show it?" not in shown
    terminal.type("/thinking\r")
    terminal.expect("How to show it?")
    terminal.type("save it\r")
    terminal.expect("? May file_write be run")
    for wrong in ("4", "of course", ""):
        terminal.type(f"{wrong}\r")
        terminal.expect(f"{f'answer> {wrong}'.rstrip()}\n  type a number from 1 to 3")
    terminal.type("1\r")
    terminal.expect("It is saved.")
    terminal.expect_prompt()
    assert re.search(r"╭─ file_write ─+╮\n│ path: note\.txt +│\n│ content: milk +│\n│ ✓ ", terminal.text)
    terminal.type("\x04")
    assert terminal.end() == 0


@pytest.mark.heavy
def test_a_long_answer_is_printed_once_and_scrolls_away(chat: Chat) -> None:
    terminal = chat("long", lines=12)
    assert terminal.end() == 0
    numbers = re.findall(r"• line (\d+)", terminal.text)
    assert numbers == [str(number) for number in range(60)]


@pytest.mark.heavy
def test_wide_characters_wrap_at_60_columns(chat: Chat) -> None:
    terminal = chat("wide", columns=60)
    assert terminal.end() == 0
    lines = terminal.text.splitlines()
    # pyte leaves the second column of a wide character empty.
    assert "".join("".join(line.split()) for line in lines) == WIDE.replace(" ", "")
    assert len(lines) > 1


@pytest.mark.heavy
def test_everything_fits_into_60_columns(chat: Chat, api: httpx.Client) -> None:
    ask_before_writing(api)
    terminal = chat("--tools", columns=60)
    terminal.expect_prompt()
    for typed, shown in (("show it\r", "The end."), ("save it\r", "answer>"), ("1\r", "It is saved.")):
        terminal.type(typed)
        terminal.expect(shown)
    terminal.expect_prompt()
    terminal.type("/help\r")
    terminal.expect("stops the answer; again: leaves")
    assert re.search(r"^╭─ file_write ─{45}╮$", terminal.text, re.MULTILINE)
    assert re.search(r"^╰─.* ms ─╯$", terminal.text, re.MULTILINE)


COLORS = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)(?:;[0-9]+)*m")


@pytest.mark.heavy
@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_nothing_is_colored_where_no_color_is_wanted(
    chat: Chat, api: httpx.Client, more: dict[str, str]
) -> None:
    ask_before_writing(api)
    colored = chat("show it")
    assert colored.end() == 0
    assert COLORS.search(colored.shown)
    terminal = chat("--tools", **more)
    terminal.expect_prompt()
    terminal.type("show it\r")
    terminal.expect("The end.")
    terminal.expect_prompt()
    terminal.type("save it\r")
    terminal.expect("3. reject")
    terminal.expect("answer>")
    terminal.type("7\r")
    terminal.expect("type a number from 1 to 3")
    terminal.type("1\r")
    terminal.expect("It is saved.")
    terminal.expect_prompt()
    terminal.type("/exit\r")
    assert terminal.end() == 0
    assert not COLORS.search(terminal.shown)
    if more.get("TERM") == "dumb":
        assert "\x1b[" not in terminal.shown.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")


@pytest.mark.heavy
def test_the_text_of_a_model_cannot_control_the_terminal(chat: Chat) -> None:
    terminal = chat("steer")
    assert terminal.end() == 0
    assert "a[2Jbc" in terminal.text


# --- stopping and questions -------------------------------------------------------------------------


def test_ctrl_c_stops_an_answer_and_a_second_one_leaves(chat: Chat) -> None:
    terminal = chat()
    terminal.expect_prompt()
    terminal.type("wait for me\r")
    terminal.expect("Here it begins")
    terminal.type("\x03")
    terminal.expect("stopped")
    terminal.expect_prompt()
    terminal.type("hello\r")
    terminal.expect("Hello.")
    terminal.expect_prompt()
    terminal.type("\x03")
    terminal.expect("Ctrl-C again, or Ctrl-D, leaves")
    terminal.expect_prompt()
    terminal.type("\x03")
    assert terminal.end() == 0


@pytest.mark.heavy
def test_ctrl_c_stops_a_single_answer_with_exit_code_130(chat: Chat) -> None:
    terminal = chat("wait here")
    terminal.expect("Here it begins")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert terminal.text.endswith("stopped")
    asked = chat("--tools", "ask me")
    asked.expect("answer>")
    asked.type("\x03")
    assert asked.end() == 130


@pytest.mark.heavy
def test_a_second_ctrl_c_leaves_although_the_server_does_not_answer(tmp_path: Path) -> None:
    with scripted_models(SCRIPT) as model:
        server = ServerProcess(tmp_path, **model_settings(model.url), LUXX_ADMIN_PASSWORD="")
        with server:
            terminal = ScreenTerminal(
                "chat", url=server.url, cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")
            )
            terminal.expect_prompt()
            terminal.type("wait\r")
            terminal.expect("Here it begins")
            os.kill(server.pid, signal.SIGSTOP)
            terminal.type("\x03")
            terminal.expect("waiting for the end; Ctrl-C again leaves")
            terminal.type("\x03")
            assert terminal.end() == 130
            os.kill(server.pid, signal.SIGCONT)
            other = ScreenTerminal(
                "chat", "wait", url=server.url, cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")
            )
            other.expect("Here it begins")
            server.kill()
            other.expect("the connection was lost; connecting again")
            other.type("\x03")
            other.expect("error: the server does not answer")
            assert other.end() == 130


@pytest.mark.heavy
def test_a_question_of_a_subagent_is_answered_as_well(chat: Chat) -> None:
    terminal = chat("--tools", "delegate this")
    terminal.expect("? [a subagent] Which colour?")
    terminal.expect("answer>")
    terminal.type("2\r")
    terminal.expect("It wants blue.")
    assert terminal.end() == 0


def test_an_answer_that_arrives_late_is_not_lost_while_the_client_looks_for_more_questions(
    chat: Chat, server: ServerProcess
) -> None:
    with breaking_proxy(server.url, answer_seconds=2 * SUBAGENT_POLL_SECONDS) as (url, _):
        terminal = chat("--tools", "delegate this", LUXX_URL=url)
        terminal.expect("? [a subagent] Which colour?")
        terminal.expect("answer>")
        terminal.type("2\r")
        terminal.expect("It wants blue.")
        assert terminal.end() == 0


@pytest.mark.heavy
def test_a_question_that_is_answered_elsewhere_disappears(chat: Chat, api: httpx.Client) -> None:
    terminal = chat("--tools", "ask me")
    terminal.expect("2. blue: like the sea")
    terminal.expect("answer>")
    (question,) = api.get("/questions", params={"status": "open"}).json()["data"]["items"]
    path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
    assert api.post(path, json={"answer": "red"}).is_success
    assert terminal.end() == 0
    assert "the question was answered elsewhere" in terminal.text
    assert terminal.text.endswith("As you like.")


# --- conversations ----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_conversation_that_is_continued_shows_its_history_and_asks_its_open_question(chat: Chat) -> None:
    first = chat("show it")
    assert first.end() == 0
    second = chat("--continue", "--tools", "ask me")
    second.expect("answer>")
    second.type("\x04")
    assert second.end() == 3
    (name,) = re.findall(r"`luxx chat --conversation\s+(\S+)`", second.text)
    for options in (("--continue",), ("--conversation", name), ("--conversation", "show it")):
        terminal = chat(*options)
        terminal.expect("> show it")
        terminal.expect("A title")
        terminal.expect("? Which colour?")
        terminal.expect("answer>")
        if options[-1] != "show it":
            terminal.type("\x04")
            terminal.expect("the answer waits for a person")
        else:
            terminal.type("9 lives\r")
            terminal.expect("As you like.")
            terminal.expect_prompt()
            terminal.type("\x04")
            assert terminal.end() == 0


@pytest.mark.heavy
def test_an_answer_that_is_being_written_is_followed(
    chat: Chat, model: ScriptedProvider, tmp_path: Path
) -> None:
    first = chat("pause")
    first.expect("Here it pauses")
    file = tmp_path / "list.txt"
    file.write_text("milk", "utf-8")
    second = chat("--continue", "--attach", str(file))
    second.expect("> pause")
    second.expect("Here it pauses")
    model.release("go")
    for terminal in (first, second):
        terminal.expect("Here it pauses on.")
    second.expect_prompt()
    assert first.end() == 0
    second.type("/attach\r")
    second.expect("the next message has list.txt")


@pytest.mark.heavy
def test_the_commands_choose_model_provider_agent_tools_and_files(
    chat: Chat, api: httpx.Client, model: ScriptedProvider, tmp_path: Path
) -> None:
    assert api.post("/agents", json={"name": "Poet", "system_prompt": "You rhyme."}).is_success
    note = tmp_path / "note.txt"
    note.write_text("milk and bread", "utf-8")
    terminal = chat()
    terminal.expect_prompt()
    for typed, shown in (
        ("/model", "model: default; offered: scripted, other"),
        ("/model other", "model: other"),
        ("/provider", "provider: default; yours: "),
        ("/agent poet", "agent: Poet"),
        ("/tools python_eval", "tools: python_eval"),
        ("/tools nothing", "error: there is no tool 'nothing' for you"),
        (f"/attach {note}", "the next message has note.txt"),
        ("/attach /nothing/here", "error: /nothing/here: No such file or directory"),
        ("/nonsense", "error: there is no command /nonsense; /help lists the commands"),
        ("hello", "Hello."),
        ("/queue", "nothing waits; while it answers, a line steers the answer"),
        ("/queue drop", "error: name a message that waits by its number; /queue lists them"),
        ("/todos", "the to-do list is empty; /todos add TEXT begins it"),
        ("/todos add Water the plants", "1. [ ] Water the plants"),
        ("/todos done 1", "1. [x] Water the plants"),
        ("/todos open 1", "1. [ ] Water the plants"),
        ("/todos rename 1 Feed the cat", "1. [ ] Feed the cat"),
        ("/todos done 2", "error: name a to-do by its number; /todos lists them"),
        ("/todos done", "error: name a to-do by its number; /todos lists them"),
        ("/todos later 1", "error: type /todos done 2, open 2, drop 2, rename 2 TEXT or add TEXT"),
        ("/todos rename 1", "error: type /todos done 2, open 2, drop 2, rename 2 TEXT or add TEXT"),
        ("/todos drop 1", "the to-do list is empty"),
    ):
        terminal.type(f"{typed}\r")
        terminal.expect(shown)
        terminal.expect_prompt()
    request = model.requests[-1].json
    assert request["model"] == "other"
    assert "You rhyme." in str(request["messages"][0]["content"])
    assert "milk and bread" in str(request["messages"][-1]["content"])
    assert [tool["function"]["name"] for tool in request["tools"]][:1] == ["python_eval"]
    terminal.type("/new\r")
    terminal.expect("a new conversation begins")
    terminal.type("hello again\r")
    terminal.expect("Hello.", count=2)
    terminal.expect_prompt()
    assert len(model.requests[-1].json["messages"]) <= 2
    terminal.type("/list\r")
    terminal.expect("2. hello")
    terminal.expect_prompt()
    terminal.type("/open 2\r")
    terminal.expect("> hello\nwith note.txt\nHello.")
    terminal.expect_prompt()
    terminal.type("/he")
    terminal.expect("/help  this list")
    terminal.type("\t")
    terminal.expect("> /help")


# --- a server that goes away ------------------------------------------------------------------------

KILLED = Script(
    rules=[
        Rule(when=When(user="^count", call=1), reply=[Text(text="one two three "), Gate(name="never")]),
        Rule(when=When(user="^count"), reply=[Text(text="one two three four")]),
        Rule(reply=[Text(text="Hello.")]),
    ]
)


@pytest.mark.heavy
def test_a_chat_survives_a_server_that_is_killed_while_it_answers_and_restarts_while_idle(
    tmp_path: Path,
) -> None:
    with scripted_models(KILLED) as model:
        server = ServerProcess(tmp_path, **model_settings(model.url), LUXX_ADMIN_PASSWORD="")
        server.command = ("serve", "--port", str(free_port()))
        with server:
            terminal = ScreenTerminal(
                "chat", url=server.url, cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")
            )
            terminal.expect_prompt()
            terminal.type("count\r")
            terminal.expect("one two three")
            server.kill()
            terminal.expect("the connection was lost; connecting again")
            server.start()
            terminal.expect("four")
            terminal.expect_prompt()
            assert terminal.text.count("one two three") == terminal.text.count("four") == 1
            server.kill()
            terminal.type("hello\r")
            terminal.expect("error: no server answers at")
            terminal.wait_for(lambda: terminal.text.splitlines()[-1] == "> hello", "the message, kept")
            server.start()
            terminal.type("\r")
            terminal.expect("Hello.")
            terminal.expect_prompt()
            terminal.type("\x04")
            assert terminal.end() == 0
