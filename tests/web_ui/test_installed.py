"""The web UI as an installed application: its manifest, and the page that it shows without the server."""

import pytest
from playwright.sync_api import expect

from web_ui.axe import check_both_screens
from web_ui.person import Person

pytestmark = pytest.mark.heavy

IS_READY = "() => navigator.serviceWorker.ready.then((found) => found.active.state === 'activated')"


def test_without_the_server_a_page_says_so_and_comes_back_by_itself(person: Person) -> None:
    with person.profile() as profile:
        page = profile.new_page()
        page.goto(f"{person.server.url}/ui/")
        field = page.get_by_label("Message", exact=True)
        field.fill("not sent yet")
        manifest = page.request.get(f"{person.server.url}/ui/app.webmanifest")
        assert manifest.headers["content-type"].startswith("application/manifest+json")
        assert manifest.json()["start_url"] == "/ui/"
        page.wait_for_function(IS_READY)
        page.reload()
        page.wait_for_function("() => navigator.serviceWorker.controller !== null")
        profile.context.set_offline(True)
        page.reload()
        expect(page.get_by_role("heading", name="The server cannot be reached")).to_be_visible()
        expect(page.get_by_text("kept in this browser")).to_be_visible()
        page.evaluate("localStorage.setItem('luxx.language', 'zh')")
        page.reload()
        expect(page.get_by_role("heading", name="无法连接服务器")).to_be_visible()
        page.evaluate("localStorage.removeItem('luxx.language')")
        profile.context.set_offline(False)
        expect(field).to_have_value("not sent yet", timeout=30_000)
        page.close()


def test_the_page_without_a_server_can_be_read_on_every_screen(person: Person) -> None:
    with person.tab() as tab:
        tab.open("/ui/offline.html")
        check_both_screens(tab, "offline")
