"""`luxx skill list|show|add|export|match` against a real server."""

import zipfile
from pathlib import Path

import httpx
from api.server_process import ServerProcess
from command_line import printed, refusal

TEXT = """---
name: meeting_notes
description: Writes the notes of a meeting.
triggers: [meeting minutes]
---

Write who was there.
"""


def test_skills_are_added_listed_shown_exported_and_matched(
    plain_server: ServerProcess, new_user: str, tmp_path: Path
) -> None:
    def luxx(*arguments: str) -> list[str]:
        return printed(plain_server, new_user, "skill", *arguments).splitlines()

    signed_in = {"authorization": f"Bearer {new_user}"}
    url = f"{plain_server.url}/projects"
    httpx.post(url, json={"name": "Club"}, headers=signed_in, trust_env=False).raise_for_status()
    folder = tmp_path / "meeting_notes"
    (folder / "assets").mkdir(parents=True)
    (folder / "SKILL.md").write_text(TEXT)
    (folder / "assets" / "form.md").write_text("# Form")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("private")
    [added] = luxx("add", str(folder), "--project", "club")
    skill_id, *fields = added.split("\t")
    assert fields == ["project", "not reviewed", "meeting_notes"]
    assert luxx("list", "--scope", "project") == [f"{added}\tWrites the notes of a meeting."]
    assert "\n".join(luxx("show", "meeting-notes")) == TEXT.rstrip("\n")
    packed = tmp_path / "packed.zip"
    assert luxx("export", skill_id, "--output", str(packed)) == [str(packed)]
    with zipfile.ZipFile(packed) as archive:
        assert sorted(archive.namelist()) == ["meeting-notes/SKILL.md", "meeting-notes/assets/form.md"]
    [match, *reasons] = luxx("match", "--project", "Club", "write", "meeting", "minutes")
    assert match.split("\t")[0::3] == ["meeting_notes", "asked for"]
    assert "   trigger: meeting minutes" in reasons
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "SKILL.md").symlink_to(folder / "SKILL.md")
    for arguments, reason in (
        (("match", "write", "meeting", "minutes"), "no skill shares words"),
        (("match", "what", "is", "a", "meeting?"), "what a word means"),
        (("match", "--project", "Garden", "x"), "there is no project 'Garden'; yours: Club"),
        (("show", "nothing"), "there is no skill 'nothing'; yours: meeting_notes"),
        (("add", str(folder), "--project", "Club"), "meeting_notes"),
        (("add", str(folder), "--tenant"), "ADMIN"),
        (("add", str(empty), "--project", "Club"), "there is no SKILL.md in"),
        (("add", str(tmp_path / "linked"), "--project", "Club"), "is a link"),
        (("add", str(tmp_path / "nothing.md"), "--project", "Club"), "No such file"),
    ):
        assert reason in refusal(plain_server, new_user, "skill", *arguments), arguments
    foreign = {"text": "write meeting minutes", "project_id": "00000000-0000-7000-8000-000000000000"}
    answer = httpx.post(f"{plain_server.url}/skills/match", json=foreign, headers=signed_in, trust_env=False)
    assert answer.status_code == 404
