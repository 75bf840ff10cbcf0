"""The section that tells a model which skills and agents the words of the message ask for. It follows the
history, so the prompts before and after begin the same.
"""

from collections.abc import Sequence

from luxx.domain.context.prompt import SectionKind, TextSection
from luxx.tools.permissions.rules import ACTIVATE_TOOL
from luxx.wire.delegation import DELEGATE_TOOL
from luxx.wire.run import RoutedChoice

OWNER = "domain.routing"


def suggested_section(choices: Sequence[RoutedChoice]) -> TextSection:
    """The line for these choices, which the model makes or leaves."""
    skills = [one.name for one in choices if one.kind == "skill"]
    agents = [one.name for one in choices if one.kind == "agent"]
    parts: list[str] = []
    if skills:
        parts.append(f"skills (call {ACTIVATE_TOOL}): {', '.join(skills)}")
    if agents:
        parts.append(f"agents (call {DELEGATE_TOOL}): {', '.join(agents)}")
    text = f"(From Luxx, not from the person.) The words of the request match {'; '.join(parts)}."
    return TextSection(kind=SectionKind.TAIL, owner=OWNER, text=f"{text} Use one only if it fits.")
