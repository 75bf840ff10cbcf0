"""The pages of rooms: creating one, several speakers at once, steering, and what stays after a reload."""

import re

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, Page, expect
from process_environment import ROOT

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person

PLANTS = [
    "Tomatoes and peppers want the south side.",
    " Salad grows in their shade, and herbs edge the path.",
]
GLASS = [
    "Double glazing costs twice as much",
    ", but halves the heating:\n\n| | euros |\n| --- | --: |\n| glass | 900 |",
]
QUESTION = {
    "question_type": "scope",
    "question": "Which side of the valley?",
    "options": [{"label": "north"}, {"label": "south"}],
    "required": True,
}
ANSWERS = {
    "Gardener": "Tomatoes alone, then.",
    "Builder": "One pane of glass, then.",
    "Treasurer": "No further sums, then.",
}
"""What each says to the last words of the person."""
MONEY = ["I calculate what is left", " after the frame: **1,150 euros**, so glass fits."]


def speaker(name: str, texts: list[str]) -> Rule:
    reply = [Text(text=texts[0], pieces=4), Gate(name=name), Text(text=texts[1], pieces=4)]
    return Rule(when=When(system=f"You are the {name}"), reply=reply)


@pytest.fixture(scope="module")
def script() -> Script:
    def money(has_result: bool) -> When:
        return When(system="You are the Treasurer", has_tool_result=has_result)

    return Script(
        rules=[
            *(
                Rule(
                    when=When(system=f"You are the {name}", has_tool_result=False, call=2),
                    reply=[Text(text=answer)],
                )
                for name, answer in ANSWERS.items()
            ),
            speaker("Gardener", PLANTS),
            speaker("Builder", GLASS),
            Rule(
                when=money(False),
                reply=[
                    Thinking(text="2,000 minus the frame."),
                    Call(name="python_eval", arguments={"expression": "2000 - 850"}),
                ],
            ),
            Rule(
                when=money(True),
                reply=[Text(text=MONEY[0], pieces=4), Gate(name="Treasurer"), Text(text=MONEY[1], pieces=4)],
            ),
            Rule(
                when=When(system="An agent that drafts"),
                reply=[Text(text="A first draft of"), Gate(name="draft"), Text(text=" it")],
            ),
            Rule(
                when=When(system="You are the Guide", has_tool_result=False),
                reply=[Call(name="ask_clarification", arguments=QUESTION)],
            ),
            Rule(
                when=When(system="You are the Guide", has_tool_result=True),
                reply=[Text(text="Then the *north*.")],
            ),
            Rule(
                when=When(system="An agent that reviews"),
                reply=[Text(text="Nothing is missing. AGREED", pieces=3)],
            ),
        ]
    )


def seat(name: str, role: str) -> dict[str, object]:
    return {"name": name, "role": role, "system_prompt": f"You are the {name}.", "tools": ["python_eval"]}


def new_greenhouse(person: Person) -> str:
    body = {
        "title": "Greenhouse",
        "task": "Plan a greenhouse of 12 square metres for 2,000 euros.",
        "policy": "parallel",
        "stop": {"any": [{"rounds": 1}, {"tokens": 50_000}]},
        "agents": [
            seat("Gardener", "knows plants"),
            seat("Builder", "knows materials"),
            seat("Treasurer", "watches the money"),
        ],
    }
    return str(person.post("/chat-rooms", body)["id"])


def texts_of(page: Page, name: str) -> str:
    """What all messages of this name show."""
    return re.sub(r"\s+", " ", " ".join(page.get_by_role("article", name=name).all_inner_texts()))


def test_three_agents_speak_at_once_and_a_reload_loses_nothing(
    person: Person, models: ScriptedProvider
) -> None:
    room = new_greenhouse(person)
    with person.tab() as tab, person.tab() as other:
        other.open(f"/ui/rooms/{room}")
        expect(other.page.get_by_role("heading", name="Greenhouse")).to_be_visible()
        page = tab.open(f"/ui/rooms/{room}")
        page.get_by_role("button", name="Start", exact=True).click()
        beginnings = {"Gardener": PLANTS[0], "Builder": GLASS[0], "Treasurer": MONEY[0]}
        for name, beginning in beginnings.items():
            article = page.get_by_role("article", name=name)
            expect(article).to_contain_text(beginning)
            expect(article.get_by_role("heading", name=name)).to_be_visible()
        boxes = [page.get_by_role("article", name=name).bounding_box() for name in beginnings]
        assert len({box["y"] for box in boxes if box}) == 1  # side by side
        colours = page.locator("article").evaluate_all(
            "all => all.map(one => getComputedStyle(one).borderLeftColor)"
        )
        assert len(set(colours)) == 3
        expect(page.get_by_role("list", name="Seats").get_by_text("has the floor")).to_have_count(3)

        page.get_by_label("Say something to the room").fill("Keep it simple, please.")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name=person.name)).to_contain_text("Keep it simple, please.")
        expect(other.page.get_by_role("article", name="Builder")).to_contain_text(GLASS[0])
        expect(other.page.get_by_role("article", name=person.name)).to_contain_text("Keep it simple, please.")
        check_both_themes(tab, "room-parallel")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        take_screenshots(tab, "room-parallel-phone")
        # High enough for the whole discussion: turns out of sight leave the page.
        page.set_viewport_size({"width": 1280, "height": 1600})

        page.reload()
        for name, beginning in beginnings.items():
            expect(page.get_by_role("article", name=name)).to_contain_text(beginning)
            assert texts_of(page, name).count(beginning) == 1
        for name in beginnings:
            models.release(name)
        card = page.get_by_role("region", name="The discussion has ended")
        expect(other.page.get_by_text("All rounds are done.")).to_be_visible()
        expect(card).to_contain_text("All rounds are done.")
        for name, (beginning, end) in zip(beginnings, (PLANTS, GLASS, MONEY), strict=True):
            first_words = end.split("\n")[0].replace("*", "")
            # The person's words came in the last round: everybody answers them before the end.
            articles = page.get_by_role("article", name=name)
            expect(articles).to_have_count(2)
            expect(articles.first).to_contain_text(f"{beginning}{first_words}")
            expect(articles.last).to_contain_text(ANSWERS[name])
            assert texts_of(page, name).count(f"{beginning}{first_words}") == 1, texts_of(page, name)
        tops = [box["y"] for one in page.get_by_role("article").all() if (box := one.bounding_box())]
        assert len(tops) == 2 * len(beginnings) + 1
        assert tops == sorted(set(tops))  # one below the other
        page.get_by_role("button", name="Thought · 1 tool").or_(
            page.get_by_title("Show thinking and tools")
        ).first.click()
        expect(page.get_by_role("button", name="python_eval")).to_contain_text("2000 - 850")
        take_screenshots(tab, "room-ended")
        with page.expect_download() as download:
            card.get_by_role("button", name="Transcript (Markdown)").click()
        assert MONEY[0] in download.value.path().read_text("utf-8")

        page.get_by_role("article", name="Gardener").first.get_by_role(
            "button", name="What the model was given"
        ).click()
        expect(page.get_by_role("complementary", name="What the model was given")).to_contain_text(
            "You are the Gardener"
        )
        check_both_themes(tab, "room-input")


def test_a_room_is_created_from_agents_paused_spoken_in_and_resumed(
    person: Person, models: ScriptedProvider
) -> None:
    for name, prompt in (("Writer", "drafts texts"), ("Critic", "reviews texts")):
        person.post("/agents", {"name": name, "role": prompt, "system_prompt": f"An agent that {prompt}."})
    with person.tab() as tab:
        page = tab.open("/ui/rooms")
        take_screenshots(tab, "rooms-empty")
        page.get_by_role("main").get_by_role("button", name="Create a room").click()
        page.get_by_label("Task", exact=True).fill("Write the notes for the next release.")
        page.get_by_role("button", name="Writer", exact=True).click()
        page.get_by_role("button", name="Critic", exact=True).click()
        page.get_by_role("button", name="New seat").click()
        expect(page.get_by_role("button", name="Create and start")).to_be_disabled()
        expect(page.get_by_text("Give every seat a name of its own.")).to_be_visible()
        page.get_by_role("button", name="Remove the seat").last.click()
        expect(page.get_by_text("Give every seat a name of its own.")).to_have_count(0)
        page.get_by_role("button", name="Add a condition").click()
        page.get_by_label("When it ends").last.select_option("phrase")
        page.get_by_label("Phrase").fill("AGREED")
        page.get_by_label("Said by").select_option(label="Critic")
        check_both_themes(tab, "room-new")
        page.get_by_role("button", name="Create and start").click()

        expect(page.get_by_role("article", name="Writer")).to_contain_text("A first draft of")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_text("Paused", exact=True).first).to_be_visible()
        expect(page.get_by_role("article", name="Writer")).to_contain_text("Interrupted")
        expect(page.get_by_role("button", name="Resume")).to_be_enabled()
        page.get_by_label("Say something to the room").fill("Be short.")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name=person.name)).to_contain_text("Be short.")
        take_screenshots(tab, "room-paused")
        page.get_by_role("button", name="Resume").click()
        # Who was cut speaks again.
        expect(page.get_by_role("article", name="Writer")).to_have_count(2)
        models.release("draft")
        expect(page.get_by_role("article", name="Writer").last).to_contain_text("A first draft of it")
        expect(page.get_by_role("article", name="Critic")).to_contain_text("Nothing is missing.")
        expect(page.get_by_text("“AGREED” was said.")).to_be_visible()
        expect(page.get_by_role("article")).to_have_count(4)
        expect(page.get_by_role("link", name="Write the notes for the next release.")).to_be_visible()
        page.reload()
        expect(page.get_by_text("“AGREED” was said.")).to_be_visible()
        assert [each["sender_name"] for each in person.get(page_path(page))["items"]][::-1] == [
            "Writer",
            person.name,
            "Writer",
            "Critic",
        ]


def test_a_person_gives_the_floor_answers_a_seat_mutes_one_and_ends_the_room(person: Person) -> None:
    seats = [seat("Guide", "knows the way") | {"tools": ["ask_clarification"]}, seat("Cook", "cooks")]
    body = {"title": "Walk", "task": "Plan a walk.", "policy": "manual", "agents": seats}
    room = person.post("/chat-rooms", body)["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/rooms/{room}")
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_role("group", name="Who speaks next?").get_by_role("button", name="Guide").click()
        guide = page.get_by_role("article", name="Guide")
        expect(guide).to_contain_text("Which side of the valley?")
        expect(page.get_by_role("list", name="Seats")).to_contain_text("Waiting for you")
        guide.get_by_role("radio", name="north").check()
        check_both_themes(tab, "room-question")
        guide.get_by_role("button", name="Answer").or_(guide.get_by_role("button", name="Send")).first.click()
        expect(guide).to_contain_text("Then the north.")
        page.get_by_role("button", name="Cook").first.click()
        page.get_by_role("menuitem", name="Mute").click()
        expect(page.get_by_role("list", name="Seats").get_by_text("Muted")).to_be_visible()
        expect(
            page.get_by_role("group", name="Who speaks next?").get_by_role("button", name="Cook")
        ).to_be_hidden()
        page.get_by_role("button", name="End", exact=True).click()
        expect(page.get_by_text("A person ended it.")).to_be_visible()


def test_a_room_is_imported_found_changed_copied_and_deleted(person: Person) -> None:
    document = (ROOT / "docs/examples/room.yaml").read_bytes()
    yaml = {"content-type": "application/yaml"}
    imported = person.api.post("/chat-rooms/import", content=document, headers=yaml).raise_for_status()
    with person.tab() as tab:
        page = tab.open(f"/ui/rooms/{imported.json()['data']['id']}")
        expect(page.get_by_role("heading", name="Open day")).to_be_visible()
        expect(page.get_by_role("list", name="Seats").get_by_role("button")).to_have_count(5)
        take_screenshots(tab, "room-idle")
        page.get_by_role("button", name="When it ends").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Said by")).to_have_value(re.compile(r"\d+"))
        dialog.get_by_label("Amount").fill("2")
        take_screenshots(tab, "room-stop")
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_role("button", name="When it ends")).to_contain_text("2 rounds")
        page.get_by_role("button", name="Who speaks next").click()
        dialog.get_by_role("radio", name="A model chooses").check()
        take_screenshots(tab, "room-policy")
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_role("button", name="Who speaks next")).to_contain_text("A model chooses")
        page.get_by_role("button", name="Planner").click()
        page.get_by_role("menuitem", name="Edit the seat").click()
        dialog.get_by_label("Role").fill("plans the evening")
        dialog.get_by_role("button", name="More settings").click()
        check_both_themes(tab, "room-seat")
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_role("list", name="Seats")).to_contain_text("plans the evening")
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Copy the room").click()
        expect(
            page.get_by_role("navigation").or_(page.locator("aside")).get_by_role("link", name="Open day")
        ).to_have_count(2)
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Delete").click()
        dialog.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("button", name="Create a room")).to_be_visible()
        expect(page.get_by_role("button", name="Open the sample room")).to_be_hidden()
        page.get_by_role("searchbox", name="Search rooms").fill("observatory")
        expect(page.get_by_role("link", name="Open day")).to_have_count(1)
        page.get_by_role("searchbox", name="Search rooms").fill("nowhere")
        expect(page.get_by_text("Nothing found")).to_be_visible()


def page_path(page: Page) -> str:
    """The path of the messages of the room that the page shows."""
    return f"/chat-rooms/{page.url.rsplit('/', 1)[-1]}/messages"


def test_what_a_member_writes_into_an_idle_room_appears(
    person: Person, server: ServerProcess, browser: Browser
) -> None:
    body = {"title": "Garden", "task": "Plan the garden.", "agents": [{"name": "Anna"}, {"name": "Ben"}]}
    room = person.post("/chat-rooms", body)["id"]
    member = Person(server, browser)
    person.post(f"/chat-rooms/{room}/members", {"username": member.name, "right": "speak"})
    with person.tab() as tab:
        page = tab.open(f"/ui/rooms/{room}")
        expect(page.get_by_role("heading", name="Garden")).to_be_visible()
        member.post(f"/chat-rooms/{room}/messages", {"content": "I like roses."})
        expect(page.get_by_text("I like roses.")).to_be_visible()
    member.api.close()
