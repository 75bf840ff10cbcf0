"""The pages of providers: connecting, testing, changing and deleting one."""

import pytest
from playwright.sync_api import Route, expect

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, When
from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(
        rules=[
            Rule(when=When(model="refused"), status=401, message="this key has expired"),
            Rule(reply=[Text(text="Hello.")]),
        ]
    )


def connect(person: Person, url: str) -> int:
    body = {
        "name": "Work",
        "provider_type": "openai_compatible",
        "base_url": f"{url}/v1",
        "api_key": "sk-secret-of-work",
        "default_model": "scripted",
    }
    return int(person.post("/providers", body)["id"])


def refuse_deletion(route: Route) -> None:
    if route.request.method != "DELETE":
        route.fallback()
        return
    refusal = {
        "success": False,
        "error": "The server is stopping.",
        "code": 503,
        "detail": {"kind": "stopping"},
    }
    route.fulfill(status=503, json=refusal)


def test_a_provider_is_tested_changed_and_deleted(person: Person, models: ScriptedProvider) -> None:
    provider_id = connect(person, models.url)
    with person.tab() as tab:
        page = tab.open("/ui/providers")
        page.get_by_role("link", name="Work").click()
        page.get_by_role("button", name="Test").click()
        expect(page.get_by_text("It answers, in")).to_be_visible()
        expect(page.get_by_role("table", name="Models")).to_contain_text("scripted")
        # The key is never sent back.
        assert "sk-secret-of-work" not in page.content()
        expect(page.get_by_label("API key")).to_have_value("")
        expect(page.get_by_label("Type")).to_have_value("OpenAI-compatible")
        check_both_themes(tab, "provider")

        page.get_by_label("Name", exact=True).fill("Office")
        page.get_by_label("Tokens per answer").fill("0")
        tab.expected_problems.append("400")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("must be", exact=False).first).to_be_visible()
        expect(page.get_by_label("Name", exact=True)).to_have_value("Office")
        page.get_by_label("Tokens per answer").fill("512")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        changed = person.get(f"/providers/{provider_id}")
        assert (changed["name"], changed["max_tokens"]) == ("Office", 512)
        expect(page.get_by_role("link", name="Office")).to_be_visible()

        # What fails is said in the dialog, which stays open for another attempt.
        address = f"**/providers/{provider_id}"
        page.route(address, refuse_deletion)
        tab.expected_problems.append("503")
        page.get_by_role("button", name="Delete Office").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(dialog.get_by_role("alert")).to_have_text("The server is stopping.")
        page.unroute(address)
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(page).to_have_url(f"{tab.url}/ui/providers")
        expect(page.get_by_role("link", name="Office")).to_have_count(0)
        assert all(each["id"] != provider_id for each in person.get("/providers")["items"])


def test_what_used_a_deleted_provider_says_so_and_takes_another(
    person: Person, models: ScriptedProvider
) -> None:
    kept = connect(person, models.url)
    gone = connect(person, models.url)
    person.put(f"/providers/{kept}", {"is_default": True})
    person.put(f"/providers/{gone}", {"name": "Leaving"})
    chat = person.post("/conversations", {"title": "Chosen", "provider_id": gone, "model": "scripted"})["id"]
    agent = person.post("/agents", {"name": "Guide", "provider_id": gone})["id"]
    with person.tab() as tab:
        page = tab.open(f"/ui/providers/{gone}")
        page.get_by_role("button", name="Delete Leaving").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(
            "Used by 1 chat, 1 agent: these get no answers until another is chosen."
        )
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(page).to_have_url(f"{tab.url}/ui/providers")

        page = tab.open(f"/ui/chat/{chat}")
        model = page.get_by_role("button", name="Model: Leaving is gone")
        model.click()
        page.get_by_role("option", name="scripted").first.click()
        expect(page.get_by_role("button", name="Model: scripted")).to_be_visible()
        assert person.get(f"/conversations/{chat}")["provider_id"] == kept

        page = tab.open(f"/ui/agents/{agent}")
        expect(page.get_by_text("The provider Leaving was deleted")).to_be_visible()
        # The list marks it too, and nothing begins with it.
        expect(page.get_by_role("img", name="Leaving is gone")).to_be_visible()
        expect(page.get_by_role("button", name="Start a chat")).to_be_disabled()
        chosen = page.get_by_role("button", name="Model: Leaving is gone")
        expect(chosen).to_be_visible()
        page.get_by_label("Role", exact=True).fill("guides")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        assert person.get(f"/agents/{agent}")["lost_provider"] == "Leaving"
        # A copy has the same loss, and waits for a choice.
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Make a copy").click()
        expect(page.get_by_label("Name", exact=True)).to_have_value("Guide (copy)")
        expect(page.get_by_label("Role", exact=True)).to_have_value("guides")
        create = page.get_by_role("button", name="Create the agent")
        expect(create).to_be_disabled()
        chosen.click()
        offers = page.get_by_role("group", name=person.get(f"/providers/{kept}")["name"], exact=True)
        offers.get_by_role("option", name="its default, scripted").click()
        create.click()
        expect(page.get_by_role("heading", name="Guide (copy)")).to_be_visible()
        [copy] = [each for each in person.get("/agents")["items"] if each["name"] == "Guide (copy)"]
        assert copy["provider_id"] == kept

        page = tab.open(f"/ui/agents/{agent}")
        page.get_by_role("button", name="Use the default").click()
        expect(page.get_by_text("The provider Leaving was deleted")).to_have_count(0)
        assert person.get(f"/agents/{agent}")["lost_provider"] is None


def test_a_default_that_is_gone_stays_gone_until_another_is_chosen(
    person: Person, models: ScriptedProvider
) -> None:
    connect(person, models.url)
    gone = connect(person, models.url)
    person.put(f"/providers/{gone}", {"name": "Leaving"})
    person.put("/settings", {"default_provider_id": gone})
    person.api.delete(f"/providers/{gone}").raise_for_status()
    with person.tab() as tab:
        tab.expected_problems.append("409")
        page = tab.open("/ui/chat?new")
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_role("button", name="Send").click()
        reason = "choose another default in your settings, or a provider for this."
        expect(
            page.get_by_text(
                f"Your default provider 'Leaving' was deleted or is no longer shared with you; {reason}"
            )
        ).to_be_visible()

        page = tab.open("/ui/settings/defaults")
        expect(page.get_by_text("Your default Leaving was deleted")).to_be_visible()
        chosen = page.get_by_label("Provider", exact=True).locator("option:checked")
        expect(chosen).to_have_text("Leaving is gone")
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        settings = person.get("/settings")
        assert (settings["temperature"], settings["lost_default_provider"]) == (0.5, "Leaving")
        page.get_by_role("button", name="Choose automatically").click()
        expect(page.get_by_text("Your default Leaving was deleted")).to_be_hidden()
        expect(chosen).to_have_text("Choose automatically")
        assert person.get("/settings")["lost_default_provider"] is None


def test_a_provider_that_does_not_answer_says_why(person: Person, models: ScriptedProvider) -> None:
    provider_id = connect(person, models.url)
    person.put(f"/providers/{provider_id}", {"default_model": "refused"})
    with person.tab(PHONE) as tab:
        page = tab.open("/ui/providers")
        page.get_by_role("link", name="Work").click()
        page.get_by_role("button", name="Test").click()
        expect(
            page.get_by_role("main").get_by_role("status").filter(has_text="refused the key (401)")
        ).to_be_visible()
        check_both_themes(tab, "phone-provider")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
