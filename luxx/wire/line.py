"""Patterns of texts of one line, as people name things and paste addresses and keys.

They end in `$(?!\\n)`. In Python a bare `$` lets a line break at the very end pass; `\\Z` does not, but means
another thing to the readers of our OpenAPI document.
"""

LINE = r"^[^\x00-\x1f\x7f]*$(?!\n)"
"""Nothing that controls a terminal; may be empty."""

NAME = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$(?!\n)"
"""A line in which something is seen."""

PASTED = r"^[^\x00-\x1f\x7f]*[\r\n]*$(?!\n)"
"""A line as it is pasted, with the line break that was copied too; who takes it cuts that off."""
