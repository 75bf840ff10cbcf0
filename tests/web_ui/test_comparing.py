"""Two models answer one message side by side; one is stopped, one kept, on wide and narrow screens."""

import pytest
from playwright.sync_api import expect

from luxx.providers.scripted import Counts, Finish, Gate, Rule, Script, Text, When
from web_ui.axe import check_both_screens
from web_ui.browser import LAPTOP, PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy

OTHER = "gpt-4.1-mini"


@pytest.fixture(scope="module")
def script() -> Script:
    usage = Counts(prompt=100, completion=10)
    return Script(
        models=["scripted", OTHER],
        rules=[
            Rule(
                when=When(model=f"^{OTHER}$", user="slowly"),
                reply=[Text(text="A stork stands"), Gate(name="slow"), Text(text=" there."), usage, Finish()],
            ),
            Rule(when=When(model=f"^{OTHER}$"), reply=[Text(text="It is a stork."), usage, Finish()]),
            Rule(reply=[Text(text="It is a heron."), usage, Finish()]),
        ],
    )


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_two_answers_stand_side_by_side_until_one_is_kept(person: Person, size: tuple[int, int]) -> None:
    with person.tab(size) as tab:
        page = tab.open("/ui/chat?new=")
        field = page.get_by_label("Message", exact=True)
        page.get_by_role("button", name="Model: ").click()
        page.get_by_role("button", name="Compare with another model").press("Enter")
        page.get_by_role("option", name=OTHER).click()
        expect(page.get_by_text(f"Also answered by {OTHER}")).to_be_visible()
        field.fill("Which bird is it? Say it slowly.")
        field.press("Enter")
        compared = page.get_by_role("region", name="Two answers to compare")
        first = compared.get_by_role("region", name="Answer of scripted")
        second = compared.get_by_role("region", name=f"Answer of {OTHER}")
        expect(first).to_contain_text("It is a heron.")
        expect(second).to_contain_text("A stork stands")
        expect(first.get_by_role("button", name="Keep this one")).to_be_disabled()
        places = [each.bounding_box() for each in (first, second)]
        assert places[0]
        assert places[1]
        is_beside = places[1]["x"] > places[0]["x"]
        assert is_beside == (size == LAPTOP)

        # A refresh in the middle shows both, and the one that is made goes on.
        page.reload()
        expect(second).to_contain_text("A stork stands")
        second.get_by_role("button", name=f"Stop {OTHER}").click()
        keep = second.get_by_role("button", name="Keep this one")
        expect(keep).to_be_enabled()
        expect(first).to_contain_text("tokens")
        if size == LAPTOP:
            entry = page.get_by_role("complementary", name="Conversations").get_by_role("listitem")
            expect(entry.get_by_title("Running")).to_be_hidden()
        check_both_screens(tab, f"comparing-{size[0]}")
        page.set_viewport_size({"width": size[0], "height": size[1]})

        # The next message needs a choice.
        tab.expected_problems.append("status of 409")
        field.fill("And this?")
        field.press("Enter")
        expect(page.get_by_text("keep one of the answers first")).to_be_visible()
        keep.press("Enter")
        expect(compared).to_be_hidden()
        answer = page.get_by_role("article", name="Answer")
        expect(answer).to_contain_text("A stork stands")
        expect(answer).to_contain_text("2 of 2")
        field.press("Enter")
        expect(answer.last).to_contain_text("It is a heron.")
