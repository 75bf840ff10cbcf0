"""A file that shells or interpreters execute at their start is only data if a run has written it."""

import os
import tempfile
from pathlib import Path

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import results, set_rules

TOUCHES = "touch ran-{name}"
SHELLS = (".bashrc", ".profile", ".bash_profile", ".bash_login", ".bash_logout", ".zshenv", ".env")
GIT = '[core]\n\tfsmonitor = "touch ran-git;:"\n[alias]\n\tst = "!touch ran-alias"\n'
USER_SITES = [f".local/lib/python3.{minor}/site-packages" for minor in range(9, 16)]
STARTUP_FILES = {
    **{name: TOUCHES.format(name=name) for name in SHELLS},
    **{f"{site}/usercustomize.py": "open('ran-python', 'w')" for site in USER_SITES},
    **{f"{site}/start.pth": "import os; open('ran-pth', 'w')" for site in USER_SITES},
    "sitecustomize.py": "open('ran-sitecustomize', 'w')",
    ".gitconfig": GIT,
    ".config/git/config": GIT,
}
COMMANDS = (
    "ls",
    "bash -c true; bash -lc true; sh -lc true",
    "python3 -c 'print(1)'; perl -e 1",
    "git init -q . && git add -A && git status",
    "git st",
)
DENIED, EXPLICIT = "touch ran-directly", "bash .bashrc"


def script() -> Script:
    """Files first, then each command in an answer of its own."""
    writes = [
        Call(name="file_write", arguments={"path": path, "content": content}, id=f"write-{count}")
        for count, (path, content) in enumerate(STARTUP_FILES.items())
    ]
    runs = [
        Call(name="shell_execute", arguments={"command": command}, id=f"run-{count}")
        for count, command in enumerate([*COMMANDS, DENIED])
    ]
    return Script(
        rules=[
            Rule(when=When(has_tool_result=False), reply=[*writes, Counts()]),
            *(
                Rule(when=When(has_tool_result=True, call=count), reply=[run, Counts()])
                for count, run in enumerate(runs, 1)
            ),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Done."), Counts()]),
        ]
    )


def run_file_script() -> Script:
    call = Call(name="shell_execute", arguments={"command": EXPLICIT}, id="run")
    return Script(
        rules=[
            Rule(when=When(has_tool_result=False), reply=[call, Counts()]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Done."), Counts()]),
        ]
    )


async def answers(ann: AsyncApiClient, model: ScriptedProvider) -> list[Json]:
    """The results of the calls of one message."""
    conversation = await ann.conversation(model.url)
    run = await ann.start_run(conversation, tools=True)
    return results(await ann.answer_shown_by(conversation, await ann.wait_for_end(run["id"])))


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_no_command_executes_startup_files_that_an_earlier_call_wrote(
    backend: str, tmp_path: Path
) -> None:
    def ran() -> list[str]:
        return sorted(path.name for path in workspaces.rglob("ran-*"))

    # Git checks the whole path, which the user that programs run as must be able to reach.
    with tempfile.TemporaryDirectory(prefix="luxx-workspaces-") as folder:
        workspaces = Path(folder)
        os.chmod(workspaces, 0o755)
        environment = {"LUXX_TOOLS__SANDBOX": backend, "LUXX_WORKSPACE__ROOT": folder}
        with ServerProcess(tmp_path, **environment) as server:
            url = server.url
            async with AsyncApiClient(url) as ann:
                if (await ann.get("/health"))["sandbox"] != backend:
                    pytest.skip(f"{backend} does not work here")
                await set_rules(ann, "allow shell_execute(*)", "deny shell_execute(touch *)")
                async with ScriptedProvider(script()) as model:
                    command_results = await answers(ann, model)
                wrote, done, refused = (
                    command_results[: len(STARTUP_FILES)],
                    command_results[len(STARTUP_FILES) : -1],
                    command_results[-1],
                )
                assert all(executed["success"] for executed in wrote), wrote
                assert [executed["data"]["exit_code"] for executed in done] == [0, 0, 0, 0, 1], done
                assert ".bashrc" not in done[0]["data"]["stdout"]
                assert "sitecustomize.py" in done[0]["data"]["stdout"]
                assert "git: 'st' is not a git command" in done[-1]["data"]["stderr"]
                assert (refused["success"], ran()) == (False, [])
                # As an explicit command, which rules can judge, the file is executed where they allow it.
                await set_rules(ann, "allow shell_execute(*)")
                async with ScriptedProvider(run_file_script()) as model:
                    (explicit,) = await answers(ann, model)
                assert explicit["success"], explicit
                assert ran() == ["ran-.bashrc"]
