"""The texts of a room's answer, read back by the names in their headings."""

import pytest

from luxx.features.rooms.calls import UNNAMED, heading, split_answer


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            f"{heading('Ann')}Yes.\n\n{heading('Bob')}No.\n\nNever.",
            [("Ann", "Yes."), ("Bob", "No.\n\nNever.")],
        ),
        (f"{heading('Ann')}Yes.\n\n{heading('Ann')}Again.", [("Ann", "Yes."), ("Ann", "Again.")]),
        ("An answer of another model.", [(UNNAMED, "An answer of another model.")]),
        (f"First.\n\n{heading('Ann')}Yes.", [(UNNAMED, "First."), ("Ann", "Yes.")]),
        ("**Eve:**\n\nNobody here.", [(UNNAMED, "**Eve:**\n\nNobody here.")]),
        ("I say **Ann:** in a line.", [(UNNAMED, "I say **Ann:** in a line.")]),
        ("**Ann:** \r\nYes.", [("Ann", "Yes.")]),
        ("", []),
    ],
)
def test_answer_is_split_at_the_names_of_seats(text: str, parts: list[tuple[str, str]]) -> None:
    assert split_answer(text, ["Ann", "Bob"]) == parts
