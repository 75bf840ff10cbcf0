"""The table in docs/operate/durability.md: each cell names tests, and each named test exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "durability.md").read_text("utf-8")
NUMBERS = re.compile(r"\[(\d+)\]")
NAMED = dict(re.findall(r"^(\d+)\. (`tests/\S+`: `test_\w+`)$", PAGE, re.MULTILINE))


def cells() -> list[str]:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][2:]
    assert rows
    return [cell for row in rows for cell in row.strip("| ").split(" | ")[1:]]


def test_each_cell_of_the_table_names_a_test() -> None:
    unnamed = [cell for cell in cells() if not NUMBERS.findall(cell)]
    assert unnamed == []
    used = set(NUMBERS.findall(PAGE))
    assert used == set(NAMED)
    assert list(NAMED) == [str(n + 1) for n in range(len(NAMED))]


def test_each_test_that_the_page_names_exists() -> None:
    for entry in NAMED.values():
        file, name = re.findall(r"`([^`]+)`", entry)
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), entry
