"""What a conversation is called that nobody has named: the beginning of what was first said in it."""

UNTITLED = "New conversation"
TITLE_LENGTH = 60
"""What a list of conversations shows of a title without cutting it."""


def title_after(known: str, text: str) -> str:
    """The title once `text` was sent: the known one, or for an untitled conversation its first line."""
    if known != UNTITLED:
        return known
    line = next((words for line in text.splitlines() if (words := " ".join(line.split()))), UNTITLED)
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    # A word that reaches over the end is left out, unless it is half of the title: not every script
    # has blanks.
    end = cut.rfind(" ")
    return f"{cut[:end] if end >= TITLE_LENGTH // 2 else cut[:-1]}…"
