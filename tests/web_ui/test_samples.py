"""The sample room and the sample task: opened by their buttons, run to the end on the demo provider."""

from collections.abc import Iterator

import pytest
from api.server_process import ServerProcess, model_settings
from playwright.sync_api import expect

from luxx.providers.demo.server import DEMO_NAME
from luxx.providers.scripted import ScriptedProvider
from web_ui.axe import serious_violations
from web_ui.browser import PHONE, take_screenshots
from web_ui.person import Person

pytestmark = pytest.mark.heavy

SECONDS = 60_000

SCROLL_AND_FIND = """async (last, words) => {
  const scroller = last.closest('.overflow-y-auto')
  const scrolled = new Promise(done => scroller.addEventListener('scroll', done, { once: true }))
  scroller.scrollTo(0, 0)
  await scrolled
  await new Promise(requestAnimationFrame)
  const said = [...scroller.querySelectorAll('article')].find(each => each.textContent.includes(words))
  const button = said.querySelector('[aria-expanded]')
  const { x, y, width, height } = button.getBoundingClientRect()
  return button.contains(document.elementFromPoint(x + width / 2, y + height / 2))
}"""
"""Whether a click reaches the steps of what has these words, right after scrolling to the beginning."""


@pytest.fixture(scope="module")
def server(
    built_ui: None, models: ScriptedProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Has the demo. New users have level 1, with which the samples must work."""
    with ServerProcess(
        tmp_path_factory.mktemp("server"),
        **model_settings(models.url),
        LUXX_DEMO__ENABLED="true",
        LUXX_ADMIN_PASSWORD="",
    ) as running:
        yield running


def test_the_sample_room_runs_to_its_end_twice(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/rooms")
        page.get_by_role("main").get_by_role("button", name="Open the sample room").click()
        expect(page.get_by_text("The answers here are scripted.")).to_be_visible()
        room = page.url.rsplit("/", 1)[1]
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_role("article").first).to_be_visible()
        take_screenshots(tab, "sample-room-running")
        expect(page.get_by_text("two telescopes, with signs")).to_be_visible(timeout=SECONDS)
        person.wait_for(person.get(f"/chat-rooms/{room}")["run_id"], "completed")
        take_screenshots(tab, "sample-room-done")
        # It has followed to its end, although nobody moved the page.
        expect(page.get_by_role("button", name="Jump to the latest")).to_have_count(0)
        # The transcript keeps in the page only what is near to what is shown: here the first round.
        assert page.get_by_role("article").last.evaluate(SCROLL_AND_FIND, "630 euros")
        sums = page.get_by_role("article").filter(has_text="630 euros")
        expect(sums.get_by_text("630 euros")).to_be_visible()
        sums.get_by_title("Show thinking and tools").click()
        expect(sums.get_by_role("button", name="process_data")).to_be_visible()
        assert serious_violations(page) == []
    first = person.get(f"/chat-rooms/{room}/messages")["items"]
    person.post(f"/chat-rooms/{room}/reset")
    person.wait_for(person.post(f"/chat-rooms/{room}/start")["id"], "completed")
    again = person.get(f"/chat-rooms/{room}/messages")["items"]
    texts = [sorted(str(one["content"]) for one in messages) for messages in (first, again)]
    assert all("process_data" in str([one["steps"] for one in messages]) for messages in (first, again))
    assert len(texts[0]) == 8
    assert texts[0] == texts[1]
    assert not any("This is the demo" in text for text in texts[0])


def test_the_sample_task_waits_for_an_approval_and_has_a_result(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/tasks")
        page.get_by_role("main").get_by_role("button", name="Open the sample task").click()
        expect(page.get_by_text("The answers here are scripted.")).to_be_visible()
        page.get_by_role("button", name="Run", exact=True).click()
        graph = page.get_by_role("group", name="The steps as a graph")
        shopping = graph.get_by_role("button", name="Write the shopping list")
        # What waits for the reader is shown by itself.
        expect(shopping).to_contain_text("Waiting", timeout=SECONDS)
        take_screenshots(tab, "sample-task-waiting")
        opened = page.get_by_role("complementary", name="Write the shopping list")
        opened.get_by_role("button", name="Approve", exact=True).click()
        expect(shopping).to_contain_text("Done", timeout=SECONDS)
        shopping.click()
        result = page.get_by_role("complementary", name="Result")
        expect(result).to_contain_text("and register it online [rules]", timeout=SECONDS)
        take_screenshots(tab, "sample-task-done")
        assert serious_violations(page) == []
    assert person.get("/usage")["sums"]["cost"] == 0
    assert DEMO_NAME not in str(person.api.get("/v1/models").json())


def test_the_samples_are_made_and_answered_in_chinese(person: Person) -> None:
    with person.tab() as tab:
        tab.page.add_init_script("localStorage.setItem('luxx.language', 'zh')")
        page = tab.open("/ui/rooms")
        page.get_by_role("main").get_by_role("button", name="打开示例房间").click()
        expect(page.get_by_role("heading", name="开放日（示例）")).to_be_visible()
        room = page.url.rsplit("/", 1)[1]
        page.get_by_role("button", name="开始", exact=True).click()
        expect(page.get_by_text("家庭场放映", exact=False).first).to_be_visible(timeout=SECONDS)
        person.wait_for(person.get(f"/chat-rooms/{room}")["run_id"], "completed")
        messages = person.get(f"/chat-rooms/{room}/messages")["items"]
        assert len(messages) == 8
        assert not any("demo" in str(one["content"]) for one in messages)

        tab.open("/ui/tasks")
        page.get_by_role("main").get_by_role("button", name="打开示例任务").click()
        page.get_by_role("button", name="运行", exact=True).click()
        graph = page.get_by_role("group", name="以图显示的步骤")
        shopping = graph.get_by_role("button", name="写出采购清单")
        expect(shopping).to_contain_text("等待你处理", timeout=SECONDS)
        take_screenshots(tab, "sample-task-chinese")
        tab.expected_problems.append("404")
        tab.open("/ui/chat/no-such-conversation")
        expect(page.get_by_role("alert")).to_contain_text("没有这个对话")


def test_a_phone_offers_the_samples_too(person: Person) -> None:
    with person.tab(PHONE) as tab:
        for area, name in (("rooms", "Open the sample room"), ("tasks", "Open the sample task")):
            page = tab.open(f"/ui/{area}")
            expect(page.get_by_role("button", name=name)).to_be_visible()
            take_screenshots(tab, f"sample-{area}-phone")
