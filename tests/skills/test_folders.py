"""Folders with a SKILL.md: how they are read, and what is reported of those that cannot be used."""

import os
import re
import time
from pathlib import Path

import pytest

from luxx.app.cli.doctor.machine import examine_skills
from luxx.domain.skills.registry import MOST_FOLDERS, read_skill, read_skills
from luxx.domain.skills.skill import BrokenSkill, Skill
from luxx.errors import InvalidInput
from luxx.features.memory.cypher.compiler import compile_query
from luxx.features.memory.cypher.schema import EDGES, LABELS
from luxx.features.memory.lexical import memory_name
from luxx.infra.config.schema import Config, SkillsConfig
from luxx.tools.permissions.rules import check_entry, entries_in

ROOT = Path(__file__).parent.parent.parent
NAME_AND_DESCRIPTION = "name: a-skill\ndescription: Does it."


def write_skill(directory: Path, text: str, name: str = "a-skill") -> Skill | BrokenSkill:
    (directory / name).mkdir(exist_ok=True)
    (directory / name / "SKILL.md").write_bytes(text.encode("utf-8", "surrogatepass"))
    return read_skill(directory, name)


def front_matter(*lines: str, body: str = "Do it.") -> str:
    return "\n".join(["---", *lines, "---", body, ""])


def test_the_documented_skill_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/agents/skills.md").read_text("utf-8")
    (example,) = re.findall(r"^```markdown\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    skill = write_skill(tmp_path, example, "release-notes")
    assert isinstance(skill, Skill), skill
    assert skill.allowed_tools == (
        "file_read", "file_glob", "file_write(notes/*)", "shell_execute(git log *)",
    )  # fmt: skip
    assert skill.license == "Apache-2.0"
    assert skill.instructions.startswith("# Release notes")


def test_the_skill_that_teaches_graph_queries_has_only_examples_that_work(tmp_path: Path) -> None:
    registry = read_skills(["skills", "builtin"], tmp_path)
    shipped = [
        "code-review", "deep-research", "doc-coauthoring", "memory-graph-querying", "ppt", "task-manager",
    ]  # fmt: skip
    assert (list(registry.skills), registry.broken) == (shipped, [])
    text = registry.skills["memory-graph-querying"].instructions
    examples = re.findall(r"^```cypher\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 10
    for example in examples:
        for dialect in ("sqlite", "postgresql"):
            compile_query(example, {}, dialect=dialect, scopes=[1], limit=200, fold=memory_name)
    for label in (*LABELS.values(), *EDGES.values()):
        assert [name for name in label.properties if name != "text" and f"`{name}`" not in text] == []
    write_skill(
        tmp_path, front_matter("name: memory-graph-querying", "description: Own."), "memory-graph-querying"
    )
    assert read_skills([".", "builtin"], tmp_path).skills["memory-graph-querying"].description == "Own."


@pytest.mark.parametrize(
    ("line", "entries"),
    [
        ("allowed-tools: file_read shell_execute(git *)", ("file_read", "shell_execute(git *)")),
        ("allowed-tools: file_read,file_list , mcp__a_*", ("file_read", "file_list", "mcp__a_*")),
        ("allowed-tools: [file_read, 'shell_execute(git log)']", ("file_read", "shell_execute(git log)")),
        ("allowed-tools: python_execute(print(1))", ("python_execute(print(1))",)),
        ("allowed-tools: ''", ()),
        ("allowed-tools: []", ()),
        ("version: 2", None),
    ],
)
def test_allowed_tools_are_a_line_or_a_list(
    tmp_path: Path, line: str, entries: tuple[str, ...] | None
) -> None:
    skill = write_skill(tmp_path, front_matter(NAME_AND_DESCRIPTION, line))
    assert isinstance(skill, Skill), skill
    assert skill.allowed_tools == entries


BROKEN_SKILLS = {
    "single hyphens inside": front_matter("name: a--skill", "description: Does it."),
    "keep one of them": front_matter(NAME_AND_DESCRIPTION, "allowed-tools: file_read", "tools: [file_list]"),
    "must be a list of phrases": front_matter(NAME_AND_DESCRIPTION, "triggers: {a: b}"),
    "a trigger is a phrase": front_matter(NAME_AND_DESCRIPTION, "triggers: [{pattern: a, weight: -1}]"),
    "must be one of keyword": front_matter(NAME_AND_DESCRIPTION, "metadata: {trigger_type: sometimes}"),
    "does not begin with front matter": "Do it.",
    "not valid YAML": front_matter("name: [a"),
    "line 3 of the front matter is not valid YAML (mapping values are not allowed here); write": (
        front_matter("name: a-skill", "description: Does two things: this and that.")
    ),
    "does not consist of keys": front_matter("just text"),
    "needs a name": front_matter("description: Does it."),
    "needs a description": front_matter("name: a-skill"),
    "lower case letters": front_matter("name: A_Skill", "description: Does it."),
    "limit is 1024": front_matter("name: a-skill", f"description: {'x' * 1025}"),
    "neither a tool's name": front_matter(NAME_AND_DESCRIPTION, "allowed-tools: 'file read)'"),
    "parenthesis is not balanced": front_matter(NAME_AND_DESCRIPTION, "allowed-tools: shell_execute(git"),
    "leave it out for all": front_matter(NAME_AND_DESCRIPTION, "allowed-tools:"),
    "or a list of them": front_matter(NAME_AND_DESCRIPTION, "allowed-tools: [[file_read]]"),
    "more than 200 entries": front_matter(NAME_AND_DESCRIPTION, f"allowed-tools: {'a ' * 201}"),
    "wildcards": front_matter(NAME_AND_DESCRIPTION, f"allowed-tools: shell_execute({'a*' * 30})"),
    "YAML alias": front_matter(NAME_AND_DESCRIPTION, "a: &a [1]", "b: [*a, *a]"),
    "control characters": front_matter("name: a-skill", 'description: "a\\0b"'),
    "its license contains": front_matter(NAME_AND_DESCRIPTION, 'license: "\\ud800"'),
    "nested too deeply": front_matter(NAME_AND_DESCRIPTION, f"a: {'[' * 2000}"),
    "is nested too deeply": front_matter(NAME_AND_DESCRIPTION, f"a:\n  {'- ' * 2000}x"),
    "the front matter is nested too deeply": front_matter(NAME_AND_DESCRIPTION, f"a: [{'1,' * 3000}]"),
    "limit is 8192": front_matter(NAME_AND_DESCRIPTION, f"a: {'x' * 9000}"),
    "allowed_tools; if you mean allowed-tools": front_matter(
        NAME_AND_DESCRIPTION, "allowed_tools: file_read"
    ),
    "Allowed-Tools; if you mean allowed-tools": front_matter(
        NAME_AND_DESCRIPTION, "Allowed-Tools: file_read"
    ),
    "alowed-tool; if you mean allowed-tools": front_matter(NAME_AND_DESCRIPTION, "alowed-tool: file_read"),
    "allowed-tools more than once": front_matter(
        NAME_AND_DESCRIPTION, "allowed-tools: file_read", "allowed-tools: '*'"
    ),
    "or merges keys": front_matter(NAME_AND_DESCRIPTION, "<<: {allowed-tools: '*'}"),
    "larger": front_matter(NAME_AND_DESCRIPTION, body="x" * 50_000),
}


def test_a_file_in_lower_case_is_read_where_there_is_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "a-skill"
    folder.mkdir()
    (folder / "skill.md").write_text(front_matter(NAME_AND_DESCRIPTION))
    skill = read_skill(tmp_path, "a-skill")
    assert isinstance(skill, Skill)
    assert skill.name == "a-skill"
    (folder / "SKILL.md").write_text(front_matter("name: b-skill", "description: Does it."))
    skill = read_skill(tmp_path, "a-skill")
    assert isinstance(skill, Skill)
    assert skill.name == "b-skill"


@pytest.mark.parametrize("problem", BROKEN_SKILLS)
def test_a_broken_skill_reports_its_problem(tmp_path: Path, problem: str) -> None:
    broken_skill = write_skill(tmp_path, BROKEN_SKILLS[problem])
    assert isinstance(broken_skill, BrokenSkill)
    # The key of a file that is too large is no part of its message.
    if problem != "larger":
        assert problem in broken_skill.problem
    assert len(broken_skill.problem) <= 500
    assert str(tmp_path) not in broken_skill.problem


def test_a_front_matter_that_is_slow_to_parse_is_refused_at_once(tmp_path: Path) -> None:
    began = time.process_time()
    for opening in ("[", "{", "- ", "? "):
        broken_skill = write_skill(
            tmp_path, front_matter(NAME_AND_DESCRIPTION, f"x: {opening * (8000 // len(opening))}")
        )
        assert isinstance(broken_skill, BrokenSkill)
    assert time.process_time() - began < 1


def test_a_link_into_a_closed_directory_hides_no_other_skill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path, front_matter(NAME_AND_DESCRIPTION))
    (tmp_path / "closed").mkdir()
    real_is_dir = Path.is_dir

    def is_dir(path: Path) -> bool:
        # Python raises this for such a link, except for root.
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return real_is_dir(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    skill_registry = read_skills([str(tmp_path)], tmp_path)
    assert list(skill_registry.skills) == ["a-skill"]
    assert [(broken_skill.name, broken_skill.problem) for broken_skill in skill_registry.broken] == [
        ("closed", "it cannot be read: Permission denied")
    ]


def test_the_number_of_folders_that_are_read_is_bounded(tmp_path: Path) -> None:
    for number in range(MOST_FOLDERS + 5):
        (tmp_path / f"s{number:04}").mkdir()
    write_skill(tmp_path, front_matter(NAME_AND_DESCRIPTION))
    skill_registry = read_skills([str(tmp_path)], tmp_path)
    assert list(skill_registry.skills) == ["a-skill"]
    assert "has more than" in skill_registry.broken[0].problem


def test_invalid_utf8_and_a_missing_file_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a-skill").mkdir()
    assert isinstance(read_skill(tmp_path, "a-skill"), BrokenSkill)
    (tmp_path / "a-skill" / "SKILL.md").write_bytes(b"---\nname: \xff\n---\n")
    broken_skill = read_skill(tmp_path, "a-skill")
    assert isinstance(broken_skill, BrokenSkill)
    assert "UTF-8" in broken_skill.problem


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text(front_matter(NAME_AND_DESCRIPTION), "utf-8")
    (tmp_path / "skills" / "a-skill").mkdir(parents=True)
    os.symlink(secret, tmp_path / "skills" / "a-skill" / "SKILL.md")
    assert isinstance(read_skill(tmp_path / "skills", "a-skill"), BrokenSkill)


def test_the_first_of_two_skills_with_one_name_is_used_and_the_doctor_reports_the_other(
    tmp_path: Path,
) -> None:
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
        write_skill(tmp_path / directory, front_matter("name: a-skill", f"description: Of {directory}."))
    config = Config(data_dir=str(tmp_path), skills=SkillsConfig(directories=["one", "two", "three"]))
    skill_registry = read_skills(config.skills.directories, tmp_path)
    assert skill_registry.skills["a-skill"].description == "Of one."
    findings = [str(finding) for finding in examine_skills(config)]
    assert any("available: a-skill" in line for line in findings)
    assert any("earlier directory" in line for line in findings)
    assert any("three does not exist" in line for line in findings)
    assert examine_skills(Config(data_dir=str(tmp_path / "empty"))) == []


@pytest.mark.parametrize("text", ["a) b", "(x)", "a(b)c", "sh;ell", "a" * 65])
def test_an_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        all(map(check_entry, entries_in(text)))
