"""Every screen of artifacts in Chinese, on a laptop and on a phone."""

import pytest
from playwright.sync_api import expect

from web_ui.browser import LAPTOP, PHONE, Tab, take_screenshots
from web_ui.person import Person
from web_ui.test_artifacts import CONTENTS, FILES, create

pytestmark = pytest.mark.heavy

WRONG = '<!-- layout: chart -->\n# 面包\n\n```chart\n{"type": "radar", "series": []}\n```\n\n' + "很长 " * 900


def check_widths(tab: Tab, name: str) -> None:
    """Nothing is wider than the screen. Axe looks at the same pages in English."""
    for width, height in (PHONE, LAPTOP):
        tab.page.set_viewport_size({"width": width, "height": height})
        take_screenshots(tab, f"{name}-{width}")
        assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (name, width)


def test_every_screen_of_artifacts_is_in_chinese(person: Person) -> None:
    made = {kind: create(person, kind) for kind in CONTENTS}
    made["code"] = create(person, "code", files=FILES)
    made["wrong"] = str(person.post("/artifacts", {"type": "ppt", "name": "太长", "content": WRONG})["id"])
    with person.tab() as tab:
        # The frames of web pages and diagrams have no origin, and so no storage.
        language = "if (self.origin !== 'null') localStorage.setItem('luxx.language', 'zh')"
        tab.page.add_init_script(language)
        page = tab.open("/ui/artifacts")
        expect(page.get_by_role("list", name="作品").get_by_role("listitem")).to_have_count(len(made))
        check_widths(tab, "zh-gallery")
        for kind, artifact_id in made.items():
            page.goto(f"{tab.url}/ui/artifacts/{artifact_id}")
            expect(page.get_by_role("group", name="显示")).to_be_visible()
            page.wait_for_load_state("networkidle")
            check_widths(tab, f"zh-{kind}")
        wrong = page.get_by_role("list", name="需要修正")
        expect(wrong).to_contain_text("页")
        assert not [text for text in wrong.all_inner_texts() if "Page" in text or "Shorten" in text]
        for name in ("源文本", "版本"):
            page.get_by_role("group", name="显示").get_by_role("button", name=name).click()
            page.wait_for_load_state("networkidle")
            check_widths(tab, f"zh-mode-{name}")
        dialog = page.get_by_role("dialog")
        for entry in ("名称和主题", "保存到工作区", "删除"):
            page.get_by_role("button", name="更多操作").click()
            page.get_by_role("menuitem", name=entry).click()
            expect(dialog).to_be_visible()
            check_widths(tab, f"zh-dialog-{entry}")
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0)
        page.get_by_role("button", name="放映").click()
        check_widths(tab, "zh-presentation")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
