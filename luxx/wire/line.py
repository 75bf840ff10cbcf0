"""Patterns for texts of one line: names, and pasted addresses and keys.

They end in `$(?!\\n)`: in Python a bare `$` also matches before a final line break. `\\Z` does not, but in
the OpenAPI document it has another meaning.
"""

IN_LINE = "one line without control characters"
IN_NAME = "one line with a visible character"
IN_PASTED = "one line, as copied"
"""What the patterns below allow, in words: the description of a field, and its error message."""

LINE = r"^[^\x00-\x1f\x7f]*$(?!\n)"
"""A line without control characters; may be empty."""

NAME = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$(?!\n)"
"""A line with at least one visible character."""

PASTED = r"^[^\x00-\x1f\x7f]*[\r\n]*$(?!\n)"
"""A pasted line, which may end in line breaks; the code that reads it must strip them."""
