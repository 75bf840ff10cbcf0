"""Signing in with the default password, choosing another one, and what a browser remembers."""

import pytest
from api.server_process import ServerProcess
from playwright.sync_api import expect

from web_ui.browser import PHONE, take_screenshots
from web_ui.conftest import OpenTab

pytestmark = pytest.mark.heavy
PASSWORD = "a good long password"


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


def test_the_first_run_offers_the_default_password_and_leads_to_another_one(
    server: ServerProcess, new_tab: OpenTab
) -> None:
    with new_tab() as tab:
        tab.expected_problems.append("401")  # the old password, below
        page = tab.open("/")
        expect(page.get_by_text("This server still has its default password")).to_be_visible()
        take_screenshots(tab, "sign-in")
        page.get_by_role("button", name="Sign in with it").click()
        expect(page.get_by_role("heading", name="Choose your own password")).to_be_visible()
        take_screenshots(tab, "first-password")
        page.get_by_role("button", name="Not now").click()
        expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        take_screenshots(tab, "first-page")
        page.get_by_role("button", name="Choose your own password").click()
        page.get_by_label("Present password").fill("admin123")
        page.get_by_label("New password", exact=True).fill(PASSWORD)
        page.get_by_label("New password again").fill(PASSWORD)
        page.get_by_role("button", name="Set the password").click()
        expect(page.get_by_text("Your password is changed.")).to_be_visible()

        page.reload()
        expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        page.get_by_role("button", name="Your account").click()
        page.get_by_role("menuitem", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(page.get_by_text("default password")).to_be_hidden()
        page.get_by_label("Name").fill("admin")
        page.get_by_label("Password").fill("admin123")
        page.get_by_role("button", name="Sign in", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("password")


def test_language_and_theme_are_remembered_and_shown_from_the_first_paint(new_tab: OpenTab) -> None:
    with new_tab(size=PHONE) as tab:
        page = tab.open()
        page.get_by_role("button", name="中文").click()
        expect(page.get_by_role("heading", name="登录")).to_be_visible()
        expect(page.get_by_role("button", name="中文")).to_have_attribute("aria-current", "true")
        page.evaluate("localStorage.setItem('luxx.theme', 'dark')")
        # Before any module runs, the page has its theme and language already.
        page.route("**/assets/*.js", lambda route: route.abort())
        tab.expected_problems.append("ERR_FAILED")
        page.reload(wait_until="domcontentloaded")
        assert page.locator("html").get_attribute("data-theme") == "dark"
        assert page.locator("html").get_attribute("lang") == "zh"
        page.unroute("**/assets/*.js")
        page.reload()
        expect(page.get_by_role("heading", name="登录")).to_be_visible()
        take_screenshots(tab, "sign-in-zh-phone")


def test_a_refusal_is_told_in_the_language_of_the_page(new_tab: OpenTab) -> None:
    with new_tab() as tab:
        tab.expected_problems += ["401", "404"]
        page = tab.open()
        page.get_by_role("button", name="中文").click()
        page.get_by_label("用户名").fill("admin")
        page.get_by_label("密码").fill("not the password")
        page.get_by_role("button", name="登录", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("用户名或密码错误。")
