"""`luxx skill list|show|add|export|match`: skills of a server, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import io
import sys
import zipfile
from pathlib import Path

from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    add_subcommands,
    all_items,
    named,
    no_such,
    one_line,
    print_fields,
)
from luxx.domain.conversations.service import ProjectView
from luxx.domain.skills.document import FILE, OTHER_FILE
from luxx.domain.skills.skill import SkillScope
from luxx.domain.skills.upload import MAX_ALL_BYTES, MAX_FILES
from luxx.domain.skills.views import SkillView
from luxx.errors import InvalidInput, LuxxError, TooLarge
from luxx.runs.routing import MatchedItems
from luxx.wire.tool import skill_key


def add_skill_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    listing = add("list", _list, "list the skills of the server, your tenant and your projects")
    listing.add_argument("--scope", choices=list(SkillScope), help="only those of this layer")
    show = add("show", _show, f"print the {FILE} of a skill")
    show.add_argument("skill", help="its name or id")
    adding = add("add", _add, f"add a skill: a {FILE}, its folder, or a ZIP file with it")
    adding.add_argument("path", type=Path, metavar="PATH")
    place = adding.add_mutually_exclusive_group(required=True)
    place.add_argument("--project", help="for the runs of this project of yours: its name or id")
    place.add_argument("--tenant", action="store_true", help="for all of your tenant (ADMIN)")
    export = add("export", _export, "write a ZIP file with the files of a skill")
    export.add_argument("skill", help="its name or id")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: NAME.zip; -: stdout")
    match = add("match", _match, "say which skills a request would be matched with, and why")
    match.add_argument("words", nargs="+", help="the request")
    match.add_argument("--project", help="with the skills of this project of yours: its name or id")


async def _list(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    for skill in await _skills(server):
        if options.scope in (None, skill.scope):
            text = skill.problem or skill.description or ""
            print_fields(skill.id, skill.scope, _state(skill), skill.name, one_line(text))


async def _skills(server: ServerApi) -> list[SkillView]:
    """The skills of all layers and projects, the nearest first."""
    found = await all_items(server, "/skills", SkillView, scope="project")
    found += reversed(await all_items(server, "/skills", SkillView, scope="all"))
    return found


def _state(skill: SkillView) -> str:
    """Why runs may not have it, or `ready`."""
    states = {
        "unusable": skill.problem is not None,
        "disabled": skill.is_disabled or not skill.enabled,
        "hidden": skill.is_overridden,
        "not reviewed": not skill.is_reviewed,
    }
    return next((state for state, holds in states.items() if holds), "ready")


async def _skill(server: ServerApi, name_or_id: str) -> SkillView:
    """The skill with this id, else the nearest with this name. Raises NotFound."""
    skills, key = await _skills(server), skill_key(name_or_id.strip())
    for skill in skills:
        if skill.id == name_or_id.strip():
            return skill
    for skill in skills:
        if skill_key(skill.name) == key:
            return skill
    raise no_such("skill", name_or_id, (skill.name for skill in skills))


async def _project(server: ServerApi, name_or_id: str) -> ProjectView:
    projects = await all_items(server, "/projects", ProjectView)
    return named(projects, name_or_id, lambda project: project.name, "project")


async def _show(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    skill = await _skill(server, options.skill)
    if skill.problem is not None:
        raise InvalidInput(f"the skill {skill.name} cannot be used: {one_line(skill.problem)}")
    text = await server.document(f"/skills/{skill.id}/content")
    for line in text.splitlines():
        print(CONTROL_CHARACTERS.sub("", line))


async def _add(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    content = _packed(options.path)
    place = {"scope": SkillScope.TENANT.value}
    if options.project is not None:
        project = await _project(server, options.project)
        place = {"scope": SkillScope.PROJECT.value, "project_id": project.id}
    added = await server.upload(options.path.name, content, SkillView, "/skills/upload", **place)
    print_fields(added.id, added.scope, _state(added), added.name)


def _packed(path: Path) -> bytes:
    """A file as it is, a folder as a ZIP file. Raises InvalidInput, TooLarge, OSError."""
    if not path.is_dir():
        if path.stat().st_size > MAX_ALL_BYTES:
            raise TooLarge(f"it is larger than {MAX_ALL_BYTES // 2**20} MB, the limit for a skill")
        return path.read_bytes()
    if not any((path / name).is_file() for name in (FILE, OTHER_FILE)):
        raise InvalidInput(f"there is no {FILE} in {path}")
    packed, total = io.BytesIO(), 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        files = [file for file in sorted(path.rglob("*")) if _belongs(file, path)]
        if len(files) > MAX_FILES:
            raise InvalidInput(f"{path} has {len(files)} files; a skill may have {MAX_FILES}")
        for file in files:
            total += file.stat().st_size
            if total > MAX_ALL_BYTES:
                raise TooLarge(f"{path} is larger than {MAX_ALL_BYTES // 2**20} MB, the limit for a skill")
            archive.write(file, Path(path.resolve().name) / file.relative_to(path))
    return packed.getvalue()


def _belongs(file: Path, folder: Path) -> bool:
    """Whether a path is a file of the skill: no hidden one. Raises InvalidInput for a link."""
    if any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(folder).parts):
        return False
    if file.is_symlink():
        raise InvalidInput(f"{file} is a link; put the file itself into the folder")
    return file.is_file()


async def _export(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    skill = await _skill(server, options.skill)
    packed = await server.content(f"/skills/{skill.id}/export")
    if options.output == Path("-"):
        sys.stdout.buffer.write(packed)
        return
    # A file that nobody named is not replaced.
    output, mode = (options.output, "wb") if options.output else (Path(f"{skill.name}.zip"), "xb")
    with output.open(mode) as file:
        file.write(packed)
    print_fields(output)


async def _match(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    project = None if options.project is None else (await _project(server, options.project)).id
    body = {"text": " ".join(options.words), "project_id": project}
    found = await server.call("POST", "/skills/match", MatchedItems, body)
    if found.is_definition:
        raise LuxxError("this asks what a word means, so no skill is meant")
    if not found.matches:
        raise LuxxError("no skill shares words with this request")
    for match in found.matches:
        verdict = "asked for" if match.score >= found.threshold else "below the threshold"
        print_fields(match.name, match.scope, f"{match.score:.1f} of {found.threshold:.1f}", verdict)
        for reason in match.reasons:
            print_fields(f"   {one_line(reason)}")
