"""`luxx provider`, `luxx model list --provider` and `luxx conversation` against a real server."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api.server_process import ServerProcess
from command_line import printed, refusal, run
from process_environment import scripted_models
from screen_terminal import ScreenTerminal

from luxx.providers.scripted import Rule, Script, Text

CLAUDE = [
    {
        "uuid": "1",
        "name": "Leeks",
        "chat_messages": [
            {"uuid": "a", "sender": "human", "text": "When do I sow leeks?"},
            {"uuid": "b", "sender": "assistant", "text": "In March."},
        ],
    }
]


def admin_token(server: ServerProcess) -> str:
    """An access token of the administrator, who may connect a private address."""
    signed_in = run(server, "", "key", "create", uuid.uuid4().hex, "--scope", "admin", "--username", "admin",
                    "--password", "admin123")  # fmt: skip
    assert signed_in.returncode == 0, signed_in
    return signed_in.stdout.strip()


@pytest.fixture
def model_url(plain_server: ServerProcess) -> str:
    """The address of the scripted model that the server has connected."""
    listed = printed(plain_server, admin_token(plain_server), "provider", "list")
    return next(line.split("\t")[4] for line in listed.splitlines() if "scripted" in line)


def test_a_provider_is_added_tested_listed_chosen_and_removed(
    plain_server: ServerProcess, model_url: str
) -> None:
    token, name = admin_token(plain_server), f"Lab {uuid.uuid4().hex[:8]}"
    listed = printed(plain_server, token, "provider", "list")
    before = next(line.split("\t")[0] for line in listed.splitlines() if f"\t{model_url}" in line)
    arguments = ("openai_compatible", "--name", name, "--base-url", model_url, "--model", "scripted")
    # The model answers nothing, so that the test of the new provider fails.
    added = run(plain_server, token, "provider", "add", *arguments, "--key-env", "LAB", LAB="sk-lab-key-1")
    assert (added.returncode, added.stdout.startswith(f"added {name} (")) == (1, True), added
    assert added.stderr.startswith(f"luxx: {name} does not answer (")
    assert "sk-lab-key-1" not in added.stdout + added.stderr
    assert f"\t{name}\topenai_compatible\tscripted\t" in printed(plain_server, token, "provider", "list")
    models = printed(plain_server, token, "provider", "models", name.upper())
    assert models == "scripted\t1048576 tokens\ttools\tdefault\n"
    assert printed(plain_server, token, "model", "list", "--provider", name) == models
    chosen = printed(plain_server, token, "provider", "default", name, "--model", "scripted")
    assert chosen == f"{name} is your default, with scripted\n"
    unlisted = refusal(plain_server, token, "provider", "default", name, "--model", "scriped")
    assert f"provider '{name}' has no model 'scriped'; it has scripted" in unlisted
    provider_id = printed(plain_server, token, "provider", "list").split(f"\t{name}\t")[0].split("\n")[-1]
    headers, body = {"authorization": f"Bearer {token}"}, {"provider_id": int(provider_id)}
    for _ in range(2):
        path = f"{plain_server.url}/conversations"
        assert httpx.post(path, json=body, headers=headers, trust_env=False).is_success
    printed(plain_server, token, "provider", "default", before)
    removed = printed(plain_server, token, "provider", "remove", name)
    assert removed == f"removed {name}; it was chosen for 2 conversations\n"
    missing = refusal(plain_server, token, "provider", "test", name)
    assert missing == f"there is no provider {name!r}; `luxx provider list` lists yours"


def test_removing_a_default_says_that_another_must_be_chosen(
    plain_server: ServerProcess, new_user: str, model_url: str
) -> None:
    name = f"Mine {uuid.uuid4().hex[:8]}"
    arguments = ("openai_compatible", "--name", name, "--base-url", model_url, "--model", "scripted")
    run(plain_server, new_user, "provider", "add", *arguments)
    printed(plain_server, new_user, "provider", "default", name)

    removed = printed(plain_server, new_user, "provider", "remove", name)

    assert removed == (
        f"removed {name}; it was the default of 1 user: choose another (luxx provider default NAME)\n"
    )
    # What the server adds in brackets for callers of its API is left out.
    assert refusal(plain_server, new_user, "chat", "hello").removeprefix("luxx: ") == (
        f"your default provider '{name}' was deleted or is no longer shared with you; "
        "choose another default in your settings, or a provider for this"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["telepathy"], 2, "invalid choice: 'telepathy'"),
        (["openai", "--key-env", "NOT_SET_ANYWHERE"], 1, "NOT_SET_ANYWHERE is not set or empty"),
        (["openai_compatible"], 1, "needs a base_url"),
        (["openai", "--name", " "], 1, "name"),
        (["openai", "--base-url", "nonsense"], 1, "base_url"),
    ],
)
def test_a_provider_that_cannot_be_added_is_refused_in_a_sentence(
    plain_server: ServerProcess, new_user: str, arguments: list[str], code: int, said: str
) -> None:
    assert said in refusal(plain_server, new_user, "provider", "add", *arguments, code=code)


@pytest.fixture
def terminal(plain_server: ServerProcess, tmp_path: Path) -> Iterator[ScreenTerminal]:
    """`luxx provider add` of a model that refuses the first two keys, without a sign-in."""
    rules = [Rule(status=401, times=2), Rule(reply=[Text(text="ok")])]
    with scripted_models(Script(rules=rules)) as model:
        arguments = ("openai_compatible", "--name", tmp_path.name, "--base-url", model.url)
        terminal = ScreenTerminal(
            *("provider", "add", *arguments, "--model", "scripted"),
            url=plain_server.url,
            cwd=tmp_path,
            XDG_CONFIG_HOME=str(tmp_path),
        )
        yield terminal
        terminal.kill()


def test_a_key_is_typed_unseen_and_asked_for_again_until_the_provider_accepts_it(
    plain_server: ServerProcess, terminal: ScreenTerminal, tmp_path: Path
) -> None:
    terminal.expect("API key (empty for none):")
    terminal.type("sk-mistyped-1\r")
    terminal.expect("(wrong_key)")
    for count, key in enumerate(("sk-mistyped-2", "sk-the-right-key"), 1):
        terminal.expect("API key (empty leaves the wrong one):", count)
        terminal.type(f"{key}\r")
    terminal.expect(f"{tmp_path.name} answers (")
    assert terminal.end() == 0
    assert "sk-" not in terminal.shown
    assert printed(plain_server, admin_token(plain_server), "provider", "remove", tmp_path.name)


@pytest.mark.parametrize("answers", [[], ["sk-mistyped-1\r"]], ids=["first", "again"])
def test_ctrl_c_ends_the_prompt_for_a_key(
    plain_server: ServerProcess, terminal: ScreenTerminal, tmp_path: Path, answers: list[str]
) -> None:
    for answer in answers:
        terminal.expect("API key (empty for none):")
        terminal.type(answer)
    terminal.expect("API key (empty leaves the wrong one):" if answers else "API key (empty for none):")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    listed = printed(plain_server, admin_token(plain_server), "provider", "list")
    assert (f"\t{tmp_path.name}\t" in listed) == bool(answers)


def test_conversations_are_imported_listed_shown_and_exported(
    plain_server: ServerProcess, new_user: str, tmp_path: Path
) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(CLAUDE), "utf-8")
    imported = printed(plain_server, new_user, "conversation", "import", str(file))
    assert imported == f"{file}: 1 conversations, 2 messages\n"
    listed = printed(plain_server, new_user, "conversation", "list")
    conversation_id = listed.split("\t")[0]
    assert listed.endswith("\tLeeks\n")
    shown = printed(plain_server, new_user, "conversation", "show", "leeks")
    assert "# Leeks" in shown
    assert "> In March." in shown
    document = printed(plain_server, new_user, "conversation", "show", conversation_id, "--json")
    assert json.loads(document)["format"] == "luxx.conversation"
    folder = tmp_path / "all"
    printed(plain_server, new_user, "conversation", "export", "--all", str(folder))
    (exported,) = folder.iterdir()
    assert exported.name == f"Leeks {conversation_id}.json"
    printed(plain_server, new_user, "conversation", "import", str(exported))
    assert len(printed(plain_server, new_user, "conversation", "list").splitlines()) == 2
    ambiguous = refusal(plain_server, new_user, "conversation", "show", "Leeks")
    assert ambiguous.startswith("2 conversations are named 'Leeks'; name one by its id: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "Nothing"], "there is no conversation 'Nothing'"),
        (["export"], "name one conversation, or a directory"),
        (["import", "missing.json"], "missing.json: No such file or directory"),
    ],
)
def test_a_wrong_conversation_command_is_refused_in_a_sentence(
    plain_server: ServerProcess, new_user: str, arguments: list[str], said: str
) -> None:
    assert said in refusal(plain_server, new_user, "conversation", *arguments)
