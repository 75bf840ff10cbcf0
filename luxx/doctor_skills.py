"""What `luxx doctor` says of the skills: which can be used, what is wrong with the others."""

from pathlib import Path

from luxx.checkup import Finding
from luxx.config import Config, SkillsConfig
from luxx.skills.shelf import read_shelf

PART = "skills"


def examine_skills(config: Config) -> list[Finding]:
    """Reads the folders as a start does."""
    shelf = read_shelf(config.skills.directories, Path(config.data_dir))
    findings = [
        Finding(
            part=PART,
            is_bad=True,
            text=f"{one.name}: {one.problem}",
            mend="mend its SKILL.md, then start the server again",
        )
        for one in shelf.broken
    ]
    # Those who use no skills need no directory for them.
    if config.skills.directories != SkillsConfig().directories:
        findings += [
            Finding(part=PART, is_bad=True, text=f"{name} is not there", mend="mend skills.directories")
            for name in shelf.missing
        ]
    if shelf.skills:
        findings.insert(0, Finding(part=PART, text=f"can be used: {', '.join(shelf.skills)}"))
    return findings
