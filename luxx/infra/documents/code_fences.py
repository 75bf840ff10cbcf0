"""Where fenced code begins and ends in Markdown, line by line. Pure."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def fence_after(open_fence: str, line: str) -> tuple[str, bool]:
    """The fence that is open after a line, empty if none is; and whether the line belongs to fenced code.

    `open_fence`: the fence that is open before the line. `line` has no line end.
    """
    match = _FENCE.match(line)
    if not open_fence:
        if match is None or (match[1][0] == "`" and "`" in match[2]):
            return "", False
        return match[1], True
    is_end = match is not None and match[1].startswith(open_fence) and not match[2].strip()
    return ("" if is_end else open_fence), True
