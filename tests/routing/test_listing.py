"""The list of skills and agents in a prompt fits its share of the window and has all names."""

from luxx.domain.context.tokens import text_tokens
from luxx.domain.routing.listing import ListedPart, listing

SKILLS = tuple((f"skill-{number}", f"Does the work number {number} " * 12) for number in range(200))
AGENTS = tuple((f"Agent {number}", "Answers questions about one part of the work.") for number in range(20))
PARTS = (
    ListedPart(introduction="Skills:", entries=SKILLS),
    ListedPart(introduction="Agents:", entries=AGENTS),
)


def test_a_long_list_takes_two_percent_of_the_window_has_all_names_and_says_what_was_cut() -> None:
    window = 128_000
    text = listing(PARTS, window)
    assert window * 0.015 < text_tokens(text) <= window * 0.02
    lines = text.splitlines()
    for name, _ in (*SKILLS, *AGENTS):
        assert any(line in (f"- {name}",) or line.startswith(f"- {name}: ") for line in lines), name
    without = sum(line.startswith("- ") and ": " not in line for line in lines)
    assert lines[-1] == f"({without} of 220 are listed without their description, to save room.)"
    # The first entries of each part keep theirs.
    assert "- skill-0: Does" in text
    assert "- skill-199\n" in text
    assert "- Agent 0: Answers" in text
    assert listing(PARTS, None) == text


def test_a_list_that_fits_is_whole_and_names_stay_in_the_smallest_window() -> None:
    few = (
        ListedPart(introduction="Skills:", entries=SKILLS[:1]),
        ListedPart(introduction="Agents:", entries=()),
    )
    assert listing(few, 1_000_000) == f"Skills:\n\n- {SKILLS[0][0]}: {SKILLS[0][1]}"
    assert listing((PARTS[1],), 1_000).count("- Agent") == 20
    assert listing((), 1_000) == ""
