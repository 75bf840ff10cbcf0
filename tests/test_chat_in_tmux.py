"""`luxx chat` in a real terminal program: tmux, with 60 columns and without colors."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from process_environment import free_port, plain_environ, scripted_models

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When

PATIENCE_SECONDS = 60.0
COLUMNS, LINES = 60, 20
COLORS = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")
WIDE = "你好，世界！这是一个很长的句子，用来检查终端里的换行是否正确，因为每个汉字占两列。😀 done"
WRITE = Call(name="file_write", arguments={"path": "note.txt", "content": "milk"})
SCRIPT = Script(
    rules=[
        Rule(when=When(user="^save", has_tool_result=False), reply=[WRITE]),
        Rule(when=When(user="^save"), reply=[Text(text="It is saved.")]),
        Rule(when=When(user="^你好"), reply=[Text(text=WIDE)]),
        Rule(when=When(user="^talk"), reply=[Text(text="First words. "), Gate(name="talk")]),
        Rule(when=When(user="^then this"), reply=[Text(text="Second words.")]),
        Rule(when=When(user="^later that"), reply=[Text(text="Third words.")]),
        Rule(when=When(user="^wait"), reply=[Text(text="Here it begins "), Gate(name="never")]),
        Rule(when=When(user="^count", call=1), reply=[Text(text="one two three "), Gate(name="never")]),
        Rule(when=When(user="^count"), reply=[Text(text="one two three four")]),
        Rule(
            when=When(user="no longer fits your context window"),
            reply=[Text(text="## Done Leeks are sown in March.")],
        ),
        Rule(reply=[Text(text="Hello.")]),
    ]
)


class Tmux:
    """One program in a tmux server of its own."""

    def __init__(self, folder: Path, *command: str, **environ: str) -> None:
        self._tmux = ["tmux", "-u", "-S", str(folder / "tmux"), "-f", os.devnull]
        self._environ = plain_environ(LANG="C.UTF-8", **environ)
        size = ("-x", str(COLUMNS), "-y", str(LINES))
        # The pane stays when the program has ended. Ctrl-C goes to the shell as well.
        script = 'trap : INT; "$@"; echo "ended with $?"; sleep 600'
        self._run("new-session", "-d", *size, "sh", "-c", script, "", *command)

    def type(self, *keys: str) -> None:
        """Names of keys, or texts."""
        self._run("send-keys", *keys)

    def paste(self, text: str) -> None:
        self._run("load-buffer", "-", given=text)
        self._run("paste-buffer", "-p")

    @property
    def text(self) -> str:
        """The pane and what scrolled away."""
        lines = self._run("capture-pane", "-p", "-S", "-1000").splitlines()
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")

    @property
    def styled_text(self) -> str:
        """The same with the sequences of styles."""
        return self._run("capture-pane", "-p", "-e", "-S", "-1000")

    def expect(self, text: str, count: int = 1) -> None:
        self.wait_for(lambda: self.text.count(text) >= count, f"{count} × {text!r}")

    def expect_prompt(self) -> None:
        self.wait_for(lambda: self.text.splitlines()[-1:] == [">"], "a prompt")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what} was not shown:\n{self.text}"
            time.sleep(0.05)

    def kill(self) -> None:
        self._run("kill-server")

    def _run(self, *arguments: str, given: str = "") -> str:
        finished = subprocess.run(
            [*self._tmux, *arguments],
            env=self._environ,
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        return finished.stdout


@pytest.fixture
def model() -> Iterator[ScriptedProvider]:
    with scripted_models(SCRIPT) as model:
        yield model


@pytest.fixture
def server(tmp_path: Path, model: ScriptedProvider) -> Iterator[ServerProcess]:
    # A provider waits while the test types, for longer than a minute on a busy machine.
    patient = {"LUXX_PROVIDERS__IDLE_TIMEOUT_SECONDS": "600"}
    server = ServerProcess(tmp_path, **model_settings(model.url), LUXX_ADMIN_PASSWORD="", **patient)
    server.command = ("serve", "--port", str(free_port()))
    with server:
        yield server


def ask_before_writing(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False) as client:
        answer = client.post("/auth/login", json={"username": "admin", "password": "admin123"})
        client.headers["authorization"] = f"Bearer {answer.json()['data']['access_token']}"
        rules = [{"tool": "file_write", "action": "ask"}]
        assert client.put("/permissions/rules", json=rules).is_success


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing; .ci/install-programs installs it")
def test_a_chat_in_a_small_terminal_without_colors(server: ServerProcess, tmp_path: Path) -> None:
    ask_before_writing(server.url)
    files = str(tmp_path / "files")
    terminal = Tmux(
        tmp_path,
        *("luxx", "chat", "--tools"),
        LUXX_URL=server.url,
        NO_COLOR="1",
        XDG_CONFIG_HOME=files,
        XDG_STATE_HOME=files,
    )
    try:
        terminal.expect_prompt()
        edit_and_paste(terminal)
        terminal.type("save it", "Enter")
        terminal.expect("answer>")
        terminal.type("7", "Enter")
        terminal.expect("type a number from 1 to 3")
        terminal.type("1", "Enter")
        terminal.expect("It is saved.")
        terminal.expect_prompt()
        terminal.type("你好", "Enter")
        terminal.expect("😀 done")
        terminal.expect_prompt()
        terminal.type("wait", "Enter")
        terminal.expect("Here it begins")
        terminal.type("C-c")
        terminal.expect("stopped")
        terminal.expect_prompt()
        terminal.type("count", "Enter")
        terminal.expect("one two three")
        server.kill()
        terminal.expect("the connection was lost; connecting again")
        server.start()
        terminal.expect("four")
        terminal.expect_prompt()
        shown = terminal.text
        assert WIDE.replace(" ", "") in "".join(shown.split())
        assert shown.count("one two three") == 1
        assert not COLORS.search(terminal.styled_text)
        terminal.type("C-d")
        terminal.expect("ended with 0")
    finally:
        terminal.kill()


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing; .ci/install-programs installs it")
def test_lines_typed_while_it_answers_steer_it_or_wait(
    server: ServerProcess, model: ScriptedProvider, tmp_path: Path
) -> None:
    files = str(tmp_path / "files")
    settings = {"LUXX_URL": server.url, "XDG_CONFIG_HOME": files, "XDG_STATE_HOME": files}
    terminal = Tmux(tmp_path, "luxx", "chat", **settings)
    try:
        terminal.expect_prompt()
        terminal.type("talk", "Enter")
        terminal.expect("First words.")
        terminal.type("then thos", "BSpace", "BSpace", "is")
        terminal.expect("> then this")  # Shown before it is sent.
        terminal.type("Enter")
        terminal.expect("waits for the next step: then this")
        terminal.type("/queue later that", "Enter", "/queue one more", "Enter")
        terminal.expect("waits for the end of the answer: one more")
        terminal.type("/queue drop 3", "Enter")
        terminal.expect("dropped: one more")
        terminal.type("/queue", "Enter")
        terminal.expect("2. waits: later that")
        terminal.type("/todos add Water the plants", "Enter", "/todos add Feed the cat", "Enter")
        terminal.expect(" 2. [ ] Feed the cat")
        terminal.type("/todos done 2", "Enter")
        terminal.expect(" 2. [x] Feed the cat")
        # Nothing is left to tell the model.
        terminal.type("/todos drop 2", "Enter", "/todos drop 1", "Enter")
        terminal.expect("the to-do list is empty")
        # What is pasted is one message, which Enter sends.
        terminal.paste("two lines\nof one paste")
        terminal.expect("> two lines of one paste")
        terminal.type("Enter")
        terminal.expect("of one paste")
        terminal.type("/queue", "Enter")
        terminal.expect("3. steers: two lines")
        terminal.type("/queue drop 3", "Enter")
        terminal.expect("dropped: two lines")
        terminal.type("not sent")
        terminal.expect("> not sent")
        # An arrow key whose bytes come one by one, and Escape alone, type nothing and take nothing away.
        for byte in ("1b", "5b", "44", "1b"):
            terminal.type("-H", byte)
        terminal.type(" yet")
        terminal.expect("> not sent yet")
        model.release("talk")
        terminal.expect("Second words.")
        terminal.expect("> later that")
        terminal.expect("Third words.")
        # What was typed and not sent is in the next prompt.
        terminal.wait_for(lambda: terminal.text.splitlines()[-1:] == ["> not sent yet"], "the draft")
        assert terminal.text.count("Second words.") == terminal.text.count("Third words.") == 1
    finally:
        terminal.kill()


LEEKS = "Leeks are sown in March, beside the wall of the garden, and watered. " * 1000


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing; .ci/install-programs installs it")
def test_the_window_of_a_conversation_is_shown_and_compressed(server: ServerProcess, tmp_path: Path) -> None:
    messages = [
        {"uuid": str(at), "sender": ("human", "assistant")[at % 2], "text": ("When?", LEEKS)[at % 2]}
        for at in range(14)
    ]
    exported = tmp_path / "conversations.json"
    exported.write_text(json.dumps([{"uuid": "1", "name": "Leeks", "chat_messages": messages}]), "utf-8")
    files = str(tmp_path / "files")
    settings = {"LUXX_URL": server.url, "XDG_CONFIG_HOME": files, "XDG_STATE_HOME": files}
    terminal = Tmux(tmp_path, "sh", "-c", f"luxx conversation import {exported}; luxx chat", **settings)
    try:
        terminal.expect_prompt()
        terminal.type("/context", "Enter")
        terminal.expect("there is no conversation yet")
        terminal.type("/open Leeks", "Enter")
        terminal.expect_prompt()
        terminal.type("/context", "Enter")
        terminal.expect("% used: about")
        terminal.expect_prompt()
        terminal.type("/compress", "Enter")
        terminal.expect("the model summarises the older messages")
        terminal.expect("the model reads a summary of older messages")
        terminal.expect("## Done Leeks are sown in March.")
        terminal.expect_prompt()
        terminal.type("/compress", "Enter")
        terminal.expect("older part would save too")
    finally:
        terminal.kill()


def edit_and_paste(terminal: Tmux) -> None:
    terminal.type("hellp", "BSpace", "o", "C-a", "Oh, ", "C-e", "!", "Enter")
    terminal.expect("> Oh, hello!")
    terminal.expect("Hello.")
    terminal.expect_prompt()
    terminal.paste("\n".join(f"pasted line {number}" for number in range(30)))
    terminal.expect("pasted line 29")
    terminal.type("Enter")
    terminal.expect("Hello.", count=2)
    terminal.expect_prompt()
    assert terminal.text.count("Hello.") == 2
