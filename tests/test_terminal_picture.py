"""The picture of the terminal in the documentation is what `luxx chat` shows now."""

import re

import pytest
from terminal_picture import PICTURE, draw


@pytest.mark.heavy
def test_the_picture_of_the_terminal_is_what_a_chat_shows() -> None:
    stored = PICTURE.read_text("utf-8")
    assert draw() == stored, "write it again with: python -m tests.terminal_picture"


def test_the_picture_loads_nothing_from_other_places() -> None:
    stored = PICTURE.read_text("utf-8")
    links = set(re.findall(r"https?://[^\"'\s)<]+", stored))
    assert links == {"http://www.w3.org/2000/svg"}, "the name of the format only"
    assert "url(http" not in stored
    assert "<script" not in stored
    assert "packing.md" in stored
