"""A conversation as Markdown for people: who said what, on the selected path.

What was said stands in quotations and fences that it cannot break out of: a fence or a comment that
somebody left open ends with its quotation and not with the page.
"""

import html
import re
from collections.abc import Iterator
from datetime import datetime

from luxx.conversations.views import ConversationView, MessageView
from luxx.wire.message import Attachment
from luxx.wire.step import Step, StepStatus, StepType

BACKTICKS = re.compile("`+")
MARKUP = re.compile(r"([\\`*_\[\]<>#|~&])")


def head_of(conversation: ConversationView, elsewhere: int) -> str:
    """The title and what is known of the conversation; `elsewhere` messages are on other branches."""
    lines = [f"# {inline(conversation.title)}", "", f"- begun {_time(conversation.created_at)}"]
    if conversation.model:
        lines.append(f"- model {inline(conversation.model)}")
    if conversation.tags:
        lines.append(f"- tags {inline(', '.join(conversation.tags))}")
    if elsewhere:
        many = (
            "1 more message is on another branch, which is"
            if elsewhere == 1
            else (f"{elsewhere:,} more messages are on other branches, which are")
        )
        lines.append(f"- {many} not shown here")
    if conversation.system_prompt:
        lines += ["", *folded("Instructions", conversation.system_prompt)]
    return "\n".join(lines) + "\n"


def message_text(message: MessageView) -> str:
    """One message under a heading of its own."""
    who = inline(message.sender_name or ("You" if message.role == "user" else "Assistant"))
    state = "" if message.status == "complete" else f", {message.status}"
    lines = ["", f"## {who}", "", f"{_time(message.created_at)}{state}", ""]
    if message.role == "user":
        lines += quoted(message.text)
        for attachment in message.attachments:
            lines += ["", *_attachment(attachment)]
    for step in message.steps:
        lines += [*_step(step), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def quoted(text: str) -> list[str]:
    """Text as a quotation."""
    return [f"> {line}".rstrip() for line in _lines(text)]


def folded(summary: str, text: str, kind: str = "") -> list[str]:
    """Text behind a summary that opens it."""
    fence = "`" * max(3, 1 + max(map(len, BACKTICKS.findall(text)), default=0))
    title = html.escape(" ".join(summary.split()))
    opening = ["<details>", f"<summary>{title}</summary>", "", f"{fence}{kind}"]
    return [*opening, *_lines(text), fence, "", "</details>"]


def inline(text: str) -> str:
    """Text within a line, without effect on what is around it."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def _step(step: Step) -> list[str]:
    name = step.name if isinstance(step.name, str) else "a tool"
    match step.type:
        case StepType.TEXT if step.status != StepStatus.INTERRUPTED:
            return quoted(step.content)
        case StepType.TEXT:
            return folded("Text that a crash cut and that was said anew", step.content)
        case StepType.THINKING:
            return folded("Thinking", step.content)
        case StepType.TOOL_CALL:
            arguments = step.arguments if isinstance(step.arguments, str) else ""
            return folded(f"Called {name}", arguments, "json")
        case StepType.TOOL_RESULT:
            return folded(f"{'Failed' if step.success is False else 'Result'}: {name}", step.content, "json")


def _attachment(attachment: Attachment) -> list[str]:
    return folded(f"Attached: {attachment.name}", attachment.content)


def _lines(text: str) -> Iterator[str]:
    yield from text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
