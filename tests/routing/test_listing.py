"""The list of skills and agents in a prompt fits its share of the window and has all names."""

from msgspec.structs import replace

from luxx.domain.context.tokens import text_tokens
from luxx.domain.routing.listing import MOST_CHANGES, ListedPart, continued, listing, use_rank
from luxx.wire.message import KeptList

SKILLS = tuple((f"skill-{number}", f"Does the work number {number} " * 12) for number in range(200))
AGENTS = tuple((f"Agent {number}", "Answers questions about one part of the work.") for number in range(20))
PARTS = (
    ListedPart(noun="skill", introduction="Skills:", entries=SKILLS),
    ListedPart(noun="agent", introduction="Agents:", entries=AGENTS),
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


def test_entries_that_are_used_most_keep_their_descriptions_and_all_stay_where_they_are() -> None:
    used = {190: 5, 195: 1, 3: 1}
    ranks = tuple(use_rank(used.get(number, 0)) for number in range(200))
    text = listing((replace(PARTS[0], ranks=ranks), PARTS[1]), 128_000)
    listed = [line for line in text.splitlines() if line.startswith("- skill-")]
    assert [line.partition(":")[0] for line in listed] == [f"- skill-{number}" for number in range(200)]
    described = [number for number, line in enumerate(listed) if ": " in line]
    assert described[-2:] == [190, 195]
    # After those the first ones, as without uses.
    assert described[:-2] == list(range(len(described) - 2))
    assert listing((replace(PARTS[0], ranks=(0,) * 200), PARTS[1]), 128_000) == listing(PARTS, 128_000)
    assert [use_rank(uses) for uses in (0, 1, 2, 3, 4, 1_000_000)] == [0, 1, 2, 2, 3, 20]


def test_a_list_that_fits_is_whole_and_names_stay_in_the_smallest_window() -> None:
    few = (
        ListedPart(noun="skill", introduction="Skills:", entries=SKILLS[:1]),
        ListedPart(noun="agent", introduction="Agents:", entries=()),
    )
    assert listing(few, 1_000_000) == f"Skills:\n\n- {SKILLS[0][0]}: {SKILLS[0][1]}"
    assert listing((PARTS[1],), 1_000).count("- Agent") == 20
    assert listing((), 1_000) == ""


def test_a_kept_list_stays_until_it_was_made_for_something_else_or_much_has_changed() -> None:
    kept = KeptList(text=listing(PARTS, None), made_for="these tools")
    assert continued(PARTS, None, kept, "these tools") == (kept.text, "")
    assert continued(PARTS, None, None, "these tools") == (kept.text, "")
    # Of 220 entries most have lost their description, which is no change.
    skills, agents = PARTS

    def changed(entries: tuple[tuple[str, str], ...], made_for: str = "these tools") -> tuple[str, str]:
        return continued((replace(skills, entries=entries), agents), None, kept, made_for)

    new = (("new", "Is new."), ("skill-0", "Does more."), *SKILLS[2:])
    text, line = changed(new)
    assert text == kept.text
    assert line.endswith(
        "new skill new: Is new.; changed skill skill-0: Does more.; the skill skill-1 cannot be used any more"
    )
    assert changed(new, "other tools") == (listing((replace(skills, entries=new), agents), None), "")
    for lost, is_kept in ((MOST_CHANGES, True), (MOST_CHANGES + 1, False)):
        assert (changed(SKILLS[lost:])[0] == kept.text) is is_kept
    long = (("long", "Is told in many words. " * 700), *SKILLS)
    assert changed(long)[1] == ""
    # A kind of which there was none is a list that was made for others.
    only_agents = KeptList(text=listing((agents,), None), made_for="these tools")
    assert continued(PARTS, None, only_agents, "these tools") == (kept.text, "")
    assert continued((replace(skills, entries=()), agents), None, only_agents, "these tools")[1] == ""
