"""Skills with scripts, references and assets, in the form that public skills have, used in a chat."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import set_rules

from luxx.domain.skills.tools import allowed_here
from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When

SAMPLES = Path(__file__).parent / "samples"


class SkilledServer:
    """A server with the sample skills in the sandbox of one backend."""

    def __init__(self, server: ServerProcess, backend: str) -> None:
        self.server = server
        self._backend = backend

    def folder(self, skill: str) -> str:
        """Where programs find the skill."""
        inside = "/skills" if self._backend == "bubblewrap" else f"{self.server.data_dir}/skills"
        return f"{inside}/{skill}"

    async def chat(
        self, ann: AsyncApiClient, skill: str, *made: Call, agent_id: str | None = None
    ) -> dict[str, Json]:
        """The results, by call id, where a model activates the skill and then makes these calls."""
        activation = Call(name="activate_skill", arguments={"name": skill}, id="skill")
        rules = [Rule(when=When(call=1), reply=[activation], times=1)]
        rules += [Rule(reply=[call], times=1) for call in made]
        script = Script(rules=[*rules, Rule(reply=[Text(text="Done.")])])
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            await ann.ask("PUT", f"/conversations/{conversation}", {"agent_id": agent_id})
            await ann.wait_for_end((await ann.start_run(conversation))["id"])
            steps = (await ann.messages(conversation))[-1]["steps"]
        return {
            step["id_ref"]: json.loads(step["content"]) for step in steps if step["type"] == "tool_result"
        }


@pytest.fixture(scope="module", params=["bubblewrap", pytest.param("landlock", marks=pytest.mark.heavy)])
def skilled(request: pytest.FixtureRequest) -> Iterator[SkilledServer]:
    with tempfile.TemporaryDirectory(prefix="luxx-skills-") as name:
        Path(name).chmod(0o755)
        data_dir = Path(name) / "data"
        data_dir.mkdir()
        shutil.copytree(SAMPLES, data_dir / "skills")
        with ServerProcess(Path(name), LUXX_TOOLS__SANDBOX=request.param) as server:
            yield SkilledServer(server, request.param)


def shell(command: str, call_id: str) -> Call:
    return Call(name="shell_execute", arguments={"command": command}, id=call_id)


def written(path: str, content: str, call_id: str = "write") -> Call:
    return Call(name="file_write", arguments={"path": path, "content": content}, id=call_id)


async def test_scripts_references_and_assets_of_public_skills_are_used_in_a_chat(
    skilled: SkilledServer,
) -> None:
    async with AsyncApiClient(skilled.server.url) as ann:
        await set_rules(ann, "allow shell_execute(*)")
        report = skilled.folder("table-report")
        found = await skilled.chat(
            ann,
            "table-report",
            Call(
                name="skill_read",
                arguments={"name": "table-report", "path": f"{report}/references/columns.md"},
                id="reads",
            ),
            written("sales.csv", "item,price\npear,2\nplum,3.5\n"),
            shell(f"python3 {report}/scripts/summarize.py sales.csv price", "runs"),
            shell("ls", "other"),
            shell(f"python3 -c \"open('{report}/scripts/summarize.py', 'a')\"", "changes"),
        )
        activated = found["skill"]["data"]
        assert activated["allowed_tools"] == [
            "file_read", "file_write", "shell_execute(python *)", "shell_execute(python3 *)",
        ]  # fmt: skip
        assert (activated["folder"], "note" in activated) == (report, False)
        assert activated["files"] == ["references/columns.md", "scripts/summarize.py"]
        assert report in activated["how_to_use_files"]
        assert "Choose the column" in found["reads"]["data"]["content"]
        assert found["runs"]["data"]["stdout"] == "price: 2 values, sum 5.5\n", found["runs"]
        assert "the skill table-report is active" in found["other"]["error"]
        assert (found["changes"]["success"], found["changes"]["data"]["exit_code"]) == (False, 1)

        await ann.post("/tools/file_write/execute", {"arguments": {"path": "body.txt", "content": "Pears."}})
        frame = f"bash {skilled.folder('page-frame')}/scripts/frame.sh Fruit body.txt"
        found = await skilled.chat(ann, "page-frame", shell(frame, "runs"))
        assert found["runs"]["data"]["stdout"] == (
            "<html><title>Fruit</title><body>Pears.</body></html>\n"
        ), found["runs"]
        assert found["skill"]["data"]["unknown_tools"] == ["NotebookEdit"]
        assert found["skill"]["data"]["note"] == (
            "no tool of this server is meant by NotebookEdit; the others limit the tools of this run"
        )

        check = skilled.folder("record-check")
        code = f"import json; print(json.load(open('{check}/assets/required.json')))"
        found = await skilled.chat(
            ann,
            "record-check",
            written("record.json", '{"name": "pear"}'),
            shell(f"python3 {check}/scripts/check.py record.json", "runs"),
            Call(name="python_execute", arguments={"code": code}, id="code"),
        )
        assert found["skill"]["data"]["allowed_tools"] is None
        assert found["skill"]["data"]["note"].endswith("so the skill limits no tools")
        assert found["runs"]["data"]["stdout"] == "missing: price\n", found["runs"]
        assert found["code"]["data"]["stdout"] == "['name', 'price']\n", found["code"]


async def test_an_agent_and_its_programs_find_its_own_skills_alone(skilled: SkilledServer) -> None:
    async with AsyncApiClient(skilled.server.url) as ann:
        await set_rules(ann, "allow shell_execute(*)")
        agent = await ann.post("/agents", {"name": "Checker", "skills": ["record-check"]})
        check, report = skilled.folder("record-check"), skilled.folder("table-report")
        found = await skilled.chat(
            ann,
            "table-report",
            Call(name="skill_read", arguments={"name": "table-report", "path": "SKILL.md"}, id="reads"),
            shell(f"cat {report}/SKILL.md", "other"),
            shell(f"cat {check}/assets/required.json", "own"),
            agent_id=agent["id"],
        )
    for call_id in ("skill", "reads"):
        assert "no skill named 'table-report'; there are: record-check" in found[call_id]["error"]
    assert found["other"]["data"]["exit_code"] == 1, found["other"]
    assert "name" in found["own"]["data"]["stdout"], found["own"]


async def test_the_list_of_skills_says_which_of_their_tools_are_unknown(skilled: SkilledServer) -> None:
    async with AsyncApiClient(skilled.server.url) as ann:
        by_name = {one["name"]: one for one in (await ann.get("/skills"))["items"]}
    assert {name: one["unknown_tools"] for name, one in by_name.items()} == {
        "table-report": [],
        "page-frame": ["NotebookEdit"],
        "record-check": ["NotebookEdit", "TodoWrite"],
    }
    assert by_name["page-frame"]["tools"] == ["shell_execute", "file_read"]
    assert by_name["record-check"]["tools"] is None


NAMES = [
    *("file_read", "file_write", "file_edit", "file_multi_edit", "file_grep", "file_glob", "file_list"),
    *("shell_execute", "web_fetch", "batch_fetch", "web_search", "mcp__default_hub__issue"),
]
MEANT: dict[str, list[str]] = {
    "Read": ["file_read"],
    "Read(./docs/**)": ["file_read(docs/*)"],
    "Write": ["file_write"],
    "Edit(src/**/*)": ["file_edit(src/*)", "file_multi_edit(src/*)"],
    "MultiEdit": ["file_multi_edit"],
    "Grep": ["file_grep"],
    "Glob": ["file_glob"],
    "LS": ["file_list"],
    "Bash": ["shell_execute"],
    "Bash(*)": ["shell_execute"],
    "Bash(git commit:*)": ["shell_execute(git commit *)"],
    "Bash(npm run test)": ["shell_execute(npm run test)"],
    "Bash(python:*)": ["shell_execute(python *)", "shell_execute(python3 *)"],
    "Bash(bash:*)": ["shell_execute"],
    "Bash(bash scripts/a.sh:*)": ["shell_execute(scripts/a.sh *)", "shell_execute(/skills/a/scripts/a.sh *)"],
    "Bash(find:*)": ["shell_execute(find *)"],
    "Bash(./scripts/a.py:*)": ["shell_execute(./scripts/a.py *)", "shell_execute(/skills/a/scripts/a.py *)"],
    "Bash(node scripts/a.js)": [
        "shell_execute(node scripts/a.js)",
        "shell_execute(node /skills/a/scripts/a.js)",
    ],
    "WebFetch": ["web_fetch", "batch_fetch"],
    "WebFetch(domain:example.org)": ["web_fetch(example.org/*)", "batch_fetch(example.org/*)"],
    "WebSearch": ["web_search"],
    "mcp__hub__issue": ["mcp__*_hub__issue"],
    "mcp__hub": ["mcp__*_hub__*"],
    "mcp__default_hub__*": ["mcp__default_hub__*"],
    "file_read(notes/*)": ["file_read(notes/*)"],
    "activate_skill": ["activate_skill"],
    "NotebookEdit": [],
    "mcp__other__*": [],
}


@pytest.mark.parametrize("entry", MEANT)
def test_names_of_other_products_mean_tools_of_this_server(entry: str) -> None:
    allowed = allowed_here([entry], NAMES, "/skills/a")
    assert allowed.entries == (tuple(MEANT[entry]) or None)
    assert allowed.unknown == (() if MEANT[entry] else (entry,))


def test_an_empty_list_of_tools_still_allows_none() -> None:
    allowed: Any = allowed_here([], NAMES)
    assert (allowed.entries, allowed.note) == ((), None)
