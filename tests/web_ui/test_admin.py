"""The pages of the administration: users, tenants, addresses, the audit log, and who may not see them."""

from collections.abc import Iterator

import httpx
import pytest
from api.server_process import ServerProcess
from playwright.sync_api import Browser, expect

from web_ui.axe import check_both_themes
from web_ui.browser import PHONE
from web_ui.person import Person

pytestmark = pytest.mark.heavy

SECTIONS = {
    "Users": "users",
    "This tenant": "tenant",
    "Tenants": "tenants",
    "Private addresses": "hosts",
    "Audit log": "audit",
    "Processes": "processes",
    "Server": "server",
}


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture
def operator(server: ServerProcess, browser: Browser) -> Iterator[Person]:
    """A new administrator of the default tenant."""
    new = Person(server, browser)
    with new.sign_in_as_admin() as admin:
        change = {"permission_level": 4}
        admin.put(f"/auth/users/{new.get('/auth/me')['id']}", json=change).raise_for_status()
    yield new
    new.api.close()


def test_a_person_without_the_level_reads_why(person: Person) -> None:
    with person.tab() as tab:
        tab.expected_problems.append("403")
        page = tab.open("/ui/admin")
        expect(page.get_by_role("alert")).to_contain_text("permission level 4 (ADMIN)")
        expect(page.get_by_role("button", name="Go to the chat")).to_be_visible()
        expect(page.get_by_role("link", name="Settings")).to_be_visible()
        expect(page.get_by_role("link", name="Administration")).to_have_count(0)
        check_both_themes(tab, "admin-refused")


def test_a_user_is_created_changed_switched_off_and_deleted(operator: Person) -> None:
    with operator.tab() as tab:
        page = tab.open("/ui/admin/users")
        page.get_by_role("button", name="New user").click()
        page.get_by_label("Name", exact=True).fill("carla")
        page.get_by_label("Password").fill("short")
        tab.expected_problems += ["400", "409"]
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_label("Password")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("Name", exact=True)).to_have_value("carla")
        page.get_by_label("Password").fill("a password for carla")
        page.get_by_label("Level").select_option("Write")
        check_both_themes(tab, "admin-new-user")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_label("Search names and addresses").fill("carla")
        row = page.get_by_role("row").filter(has_text="carla")
        expect(row).to_contain_text("Write")
        expect(page.get_by_role("row")).to_have_count(2)

        def choose(entry: str) -> None:
            page.get_by_role("button", name="Actions for carla").click()
            page.get_by_role("menuitem", name=entry).click()

        choose("Edit")
        page.get_by_label("Level").select_option("Execute")
        page.get_by_label("Email").fill("carla@example.org")
        page.get_by_role("button", name="Save").click()
        expect(row).to_contain_text("Execute")
        expect(row).to_contain_text("carla@example.org")
        choose("Reset the password")
        page.get_by_label("First password").fill("for the first time")
        page.get_by_role("dialog").get_by_role("button", name="Reset the password").click()
        expect(row).to_contain_text("Must choose a password")
        body = {"username": "carla", "password": "for the first time"}
        assert httpx.post(f"{operator.server.url}/auth/login", json=body).status_code == 200
        choose("Switch off")
        expect(page.get_by_role("dialog")).to_contain_text("runs end at once")
        page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
        expect(row).to_contain_text("Switched off")
        assert httpx.post(f"{operator.server.url}/auth/login", json=body).status_code in {401, 403}
        choose("Switch on")
        expect(row).to_contain_text("Must choose a password")
        choose("Delete")
        expect(page.get_by_role("dialog")).to_contain_text("all their data is deleted")
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_text("No users found")).to_be_visible()
        assert operator.get("/auth/users", q="carla")["total"] == 0


def test_tenants_registration_and_private_addresses(operator: Person) -> None:
    with operator.tab() as tab:
        page = tab.open("/ui/admin/tenants")
        page.get_by_role("button", name="New tenant").click()
        page.get_by_label("Name", exact=True).fill("Physics")
        page.get_by_role("button", name="Create").click()
        row = page.get_by_role("row").filter(has_text="Physics")
        expect(row).to_be_visible()
        page.get_by_role("button", name="New tenant").click()
        page.get_by_label("Name", exact=True).fill("Physics")
        tab.expected_problems += ["400", "409"]
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_label("Name", exact=True)).to_have_value("Physics")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Delete Physics").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(row).to_have_count(0)

        page.get_by_role("link", name="This tenant").click()
        page.get_by_label("Registration is open").uncheck()
        page.get_by_label("Facts from conversations").select_option(label="On")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()
        tenant = operator.get("/tenant")
        assert (tenant["allow_registration"], tenant["extraction"]) == (False, "on")
        page.get_by_label("Registration is open").check()
        page.get_by_label("Facts from conversations").select_option(label="Off")
        with page.expect_response(lambda each: each.request.method == "PUT") as saved:
            page.get_by_role("button", name="Save").click()
        assert saved.value.status == 200
        assert operator.get("/tenant")["allow_registration"] is True

        page.get_by_role("link", name="Private addresses").click()
        page.get_by_label("Address", exact=True).fill("not an address")
        page.get_by_role("button", name="Allow").click()
        expect(page.get_by_label("Address", exact=True)).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("Address", exact=True)).to_have_value("not an address")
        page.get_by_label("Address", exact=True).fill("127.0.0.1:11434")
        page.get_by_role("button", name="Allow").click()
        page.get_by_role("button", name="Remove 127.0.0.1:11434").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name="Remove 127.0.0.1:11434")).to_have_count(0)
        assert "127.0.0.1:11434" not in str(operator.get("/admin/allowed-hosts"))


def test_a_lost_default_of_the_tenant_is_named_until_another_is_chosen(operator: Person) -> None:
    body = {
        "provider_type": "openai",
        "api_key": "sk-of-nobody",
        "default_model": "gpt-4o",
        "is_shared": True,
    }
    lost, other = (operator.post("/providers", {"name": name} | body)["id"] for name in ("Gone", "Shared"))
    before = operator.get("/tenant")["default_provider_id"]
    operator.put("/tenant", {"default_provider_id": lost})
    operator.api.delete(f"/providers/{lost}").raise_for_status()
    with operator.tab() as tab:
        page = tab.open("/ui/admin/tenant")
        mark = page.get_by_role("status").filter(has_text="The default provider Gone of the tenant")
        expect(mark).to_be_visible()
        check_both_themes(tab, "admin-tenant-lost")
        page.get_by_label("Default provider").select_option("Shared")
        page.get_by_role("button", name="Save").click()
        expect(mark).to_have_count(0)
        assert operator.get("/tenant")["default_provider_id"] == other
        page.get_by_label("Default provider").select_option("Any shared provider")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved").first).to_be_visible()
    operator.put("/tenant", {"default_provider_id": before})
    operator.api.delete(f"/providers/{other}").raise_for_status()


def test_the_audit_log_is_filtered_paged_and_shows_an_entry(operator: Person) -> None:
    for number in range(55):
        key = operator.post("/keys", {"name": f"key-{number}", "scopes": ["read"]})
        operator.api.delete(f"/keys/{key['id']}").raise_for_status()
    with operator.tab() as tab:
        page = tab.open(f"/ui/admin/audit?user={operator.get('/auth/me')['id']}")
        expect(page.get_by_text(f"Only what {operator.name} did.")).to_be_visible()
        page.get_by_label("Action", exact=True).select_option("API key created")
        rows = page.get_by_role("row").filter(has_text="API key created")
        expect(rows).to_have_count(50)
        expect(page.get_by_role("row").filter(has_text="API key revoked")).to_have_count(0)
        page.get_by_role("button", name="Load more").click()
        expect(rows).to_have_count(55)
        expect(page.get_by_role("button", name="Load more")).to_have_count(0)
        rows.filter(has_text="key-54").get_by_role("button").click()
        expect(page.get_by_role("dialog")).to_contain_text("key_create")
        expect(page.get_by_role("dialog").get_by_text("Name", exact=True)).to_be_visible()
        expect(page.get_by_role("dialog")).to_contain_text("127.0.0.1")
        check_both_themes(tab, "admin-audit-entry")
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        page.get_by_label("Outcome", exact=True).select_option("Refused")
        expect(page.get_by_text("No entries")).to_be_visible()
        page.get_by_role("button", name="Show everybody").click()
        page.get_by_label("Action", exact=True).select_option("Registration")
        page.get_by_label("Outcome", exact=True).select_option("Done")
        expect(page.get_by_role("row").filter(has_text="Registration").first).to_be_visible()


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["laptop", "phone"])
def test_axe_finds_nothing_serious(operator: Person, size: tuple[int, int]) -> None:
    with operator.tab(size) as tab:
        page = tab.open("/ui/admin")
        expect(page.get_by_role("heading", name="Administration")).to_be_visible()
        check_both_themes(tab, f"admin-{size[0]}")
        for label, path in SECTIONS.items():
            if size == PHONE:
                page.goto(f"{tab.url}/ui/admin")
            page.get_by_role("link", name=label, exact=True).click()
            expect(page.get_by_role("heading", name=label, exact=True)).to_be_visible()
            page.wait_for_load_state("networkidle")
            check_both_themes(tab, f"admin-{path}-{size[0]}")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_review_shows_what_changed_since_the_last_one(operator: Person) -> None:
    text = "---\nname: style\ndescription: How we write.\n---\n\nWrite short.\n"
    new = {"name": "style", "description": "How we write.", "scope": "tenant", "content": text}
    skill = operator.post("/skills", new)
    operator.post(f"/skills/{skill['id']}/review", {})
    with operator.tab() as tab:
        page = tab.open(f"/ui/tools/skills/{skill['id']}")
        expect(page.get_by_text("Tenant · Ready")).to_be_visible()
        expect(page.get_by_text("What changed since")).to_have_count(0)
        page.get_by_label("SKILL.md", exact=True).fill(f"{text}\nAnd clearly.\n")
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_text("What changed since the last review").click()
        changed = page.get_by_role("group", name="SKILL.md")
        expect(changed.get_by_text("+And clearly.")).to_be_visible()
        check_both_themes(tab, "skill-differences")
        page.get_by_role("button", name="Mark as reviewed").click()
        expect(page.get_by_text("Tenant · Ready")).to_be_visible()
        expect(changed).to_have_count(0)
