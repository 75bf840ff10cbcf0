"""The pages of the settings: the account, defaults, API keys, and what the server refuses."""

import re

import httpx
import pytest
from playwright.sync_api import expect

from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import PASSWORD, Person

pytestmark = pytest.mark.heavy

SECTIONS = {
    "Account": "account",
    "Appearance": "appearance",
    "Defaults": "defaults",
    "API keys": "keys",
    "Shared links": "links",
    "Keyboard shortcuts": "shortcuts",
}


def test_a_key_is_created_shown_once_and_revoked(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/settings/keys")
        expect(page.get_by_text("No API keys")).to_be_visible()
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("dashboard")
        page.get_by_label("Read", exact=False).first.check()
        check_both_themes(tab, "settings-new-key")
        page.get_by_role("button", name="Create the key").click()
        key = page.get_by_label("The new key").inner_text()
        seen = httpx.get(f"{person.server.url}/keys", headers={"authorization": f"Bearer {key}"})
        assert seen.json()["data"]["items"][0]["scopes"] == ["read"]
        check_both_themes(tab, "settings-key")
        page.get_by_role("button", name="Close").first.click()
        expect(page.get_by_text(key)).to_have_count(0)
        row = page.get_by_role("row").filter(has_text="dashboard")
        expect(row).to_contain_text("Not used")
        check_both_themes(tab, "settings-keys")

        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("dashboard")
        page.get_by_role("button", name="Create the key").click()
        tab.expected_problems.append("409")
        expect(page.get_by_role("dialog")).to_contain_text("dashboard")
        expect(page.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("Name")).to_have_value("dashboard")
        page.get_by_role("button", name="Cancel").click()

        page.get_by_role("button", name="Revoke dashboard").click()
        expect(page.get_by_role("dialog")).to_contain_text("refused at once")
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.get_by_text("No API keys")).to_be_visible()
        refused = httpx.get(f"{person.server.url}/keys", headers={"authorization": f"Bearer {key}"})
        assert refused.json()["detail"]["kind"] == "key_invalid"


def test_defaults_are_stored_and_a_wrong_one_loses_nothing_typed(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/settings/defaults")
        page.get_by_label("Temperature").fill("3")
        page.get_by_label("System prompt").fill("Answer briefly.")
        page.get_by_role("button", name="Save").click()
        tab.expected_problems.append("400")
        expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("System prompt")).to_have_value("Answer briefly.")
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_label("Thinking").select_option("On")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        stored = person.get("/settings")
        assert (stored["temperature"], stored["thinking_enabled"]) == (0.5, True)
        assert (stored["system_prompt"], stored["max_tokens"]) == ("Answer briefly.", None)
        page.reload()
        expect(page.get_by_label("Temperature")).to_have_value("0.5")
        page.get_by_label("Temperature").fill("")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        assert person.get("/settings")["temperature"] is None


def test_the_account_changes_its_password_appearance_and_sign_in(person: Person) -> None:
    with person.tab() as tab:
        page = tab.open("/ui/settings")
        expect(page).to_have_url(re.compile("/ui/settings/account$"))
        page.get_by_label("Present password").fill("not the password")
        page.get_by_label("New password", exact=True).fill("another good password")
        page.get_by_label("New password again").fill("another good password")
        page.get_by_role("button", name="Set the password").click()
        tab.expected_problems += ["400", "401", "403"]
        expect(page.get_by_label("New password again")).to_have_value("another good password")
        expect(page.locator("form")).to_contain_text(re.compile("password.*(wrong|not|incorrect)", re.I))
        page.get_by_label("Present password").fill(PASSWORD)
        page.get_by_role("button", name="Set the password").click()
        expect(page.get_by_text("Your password is changed.")).to_be_visible()
        page.get_by_role("link", name="Appearance").click()
        page.get_by_label("Theme").select_option("Dark")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.get_by_label("Language").select_option("中文")
        expect(page.get_by_role("heading", name="外观")).to_be_visible()
        page.get_by_role("link", name="账户").click()
        page.get_by_role("main").get_by_role("button", name="退出").click()
        expect(page).to_have_url(re.compile("/ui/sign-in"))


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["laptop", "phone"])
def test_axe_finds_nothing_serious(person: Person, size: tuple[int, int]) -> None:
    person.post("/keys", {"name": "nightly-report", "scopes": ["chat"], "expires_at": "2099-01-31T00:00:00Z"})
    with person.tab(size) as tab:
        page = tab.open("/ui/settings")
        check_both_themes(tab, f"settings-{size[0]}")
        for label, path in SECTIONS.items():
            if size == PHONE:
                page.goto(f"{tab.url}/ui/settings")
            page.get_by_role("link", name=label).click()
            expect(page.get_by_role("heading", name=label, exact=True)).to_be_visible()
            if path == "keys":
                expect(page.get_by_text("nightly-report")).to_be_visible()
            check_both_themes(tab, f"settings-{path}-{size[0]}")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
