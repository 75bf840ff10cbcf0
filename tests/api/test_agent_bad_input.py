"""Wrong requests to every route of agents: each is refused, names the field and changes nothing, and a
request that differs from it only in that value passes.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from api.client import PASSWORD, ApiClient
from api.schema import Document
from api.server_process import ServerProcess
from api.stored_content import StoredContent, stored_content

HUGE = 10**30
AGENT, INVOKE = "/agents/{agent}", "/agents/{agent}/invoke"
RULES = "/permissions/rules?scope=agent&id={agent}"
DENY = {"tool": "shell_execute", "pattern": "git *", "action": "deny"}
YAML = "version: 1\nname: Imported\n"


class Pair(msgspec.Struct, frozen=True):
    """A wrong and a right request to one path. A body is JSON, or the text of a document.

    `fields` are the paths that the refusal must name. `{agent}` is an agent of anna; `{foreign}` is one of
    another tenant and `{private}` one of bob, both not shared; `{shipped}` comes with Luxx.
    """

    name: str
    method: str
    path: str
    wrong: Any
    right: Any
    fields: tuple[str, ...] = ()
    status: int = 400
    right_path: str = ""
    headers: dict[str, str] = {}


def create(name: str, wrong: dict[str, Any], right: dict[str, Any], *fields: str, **more: Any) -> Pair:
    base = {} if "name" in wrong else {"name": "Created"}
    return Pair(name, "POST", "/agents", {**base, **wrong}, {"name": "Created", **right}, fields, **more)


def change(name: str, wrong: dict[str, Any], right: dict[str, Any], *fields: str, **more: Any) -> Pair:
    return Pair(name, "PUT", AGENT, wrong, right, fields, **more)


def imported(name: str, wrong: str, right: str, *fields: str, **more: Any) -> Pair:
    return Pair(name, "POST", "/agents/import", wrong, right, fields, **more)


def line(name: str, wrong: str, right: str, *fields: str, **more: Any) -> Pair:
    """A document with one more line."""
    return imported(name, f"{YAML}{wrong}\n", f"{YAML}{right}\n", *fields, **more)


def invoke(name: str, wrong: dict[str, Any], right: dict[str, Any], *fields: str, **more: Any) -> Pair:
    base = {"content": "hello"}
    return Pair(name, "POST", INVOKE, {**base, **wrong}, {**base, **right}, fields, **more)


def address(name: str, method: str, wrong: str, right: str, *fields: str, **more: Any) -> Pair:
    body = more.pop("body", None)
    return Pair(name, method, wrong, body, body, fields, right_path=right, **more)


CREATED = [
    create("no name", {"name": None}, {}, "$.name"),
    create("a name of blanks", {"name": "   "}, {}, "$.name"),
    create("a name of two lines", {"name": "a\nb"}, {"name": "a b"}, "$.name"),
    create("a name with an escape character", {"name": "a\x1b[2J"}, {"name": "a[2J"}, "$.name"),
    create("a name of 101 characters", {"name": "x" * 101}, {"name": "x" * 100}, "$.name"),
    create("a role of two lines", {"role": "a\nb"}, {"role": "a b"}, "$.role"),
    create("a role of 501 characters", {"role": "x" * 501}, {"role": "x" * 500}, "$.role"),
    create("a prompt with NUL", {"system_prompt": "a\0b"}, {"system_prompt": "a\tb"}, "$.system_prompt"),
    create("a prompt of 100,001 characters", {"system_prompt": "x" * 100_001},
           {"system_prompt": "x" * 100_000}, "$.system_prompt"),
    create("a prompt that is a list", {"system_prompt": ["a"]}, {"system_prompt": "a"}, "$.system_prompt"),
    create("a color in words", {"color": "red"}, {"color": "#ff0000"}, "$.color"),
    create("a color with a line break", {"color": "#ff000\n"}, {"color": "#ff0000"}, "$.color"),
    create("a model without a visible character", {"model": "\r\n"}, {"model": " m "}, "$.model"),
    create("a fallback with a model of two lines",
           {"fallbacks": [{"provider_id": "{provider}", "model": "a\nb"}]},
           {"fallbacks": [{"provider_id": "{provider}", "model": " m "}]}, "$.fallbacks[0].model"),
    create("a temperature in words", {"temperature": "0.5"}, {"temperature": 0.5}, "$.temperature"),
    create("a temperature above 2", {"temperature": 2.01}, {"temperature": 2}, "$.temperature"),
    create("half a token", {"max_tokens": 1.5}, {"max_tokens": 1.0}, "$.max_tokens"),
    create("huge tokens", {"max_tokens": HUGE}, {"max_tokens": 10_000_000}, "$.max_tokens"),
    create("no model calls", {"max_iterations": 0}, {"max_iterations": 1}, "$.max_iterations"),
    create("101 model calls", {"max_iterations": 101}, {"max_iterations": 100}, "$.max_iterations"),
    create("thinking in words", {"thinking_enabled": "yes"}, {"thinking_enabled": True},
           "$.thinking_enabled"),
    create("tools that are one name", {"tools": "file_read"}, {"tools": ["file_read"]}, "$.tools"),
    create("an unknown tool", {"tools": ["file_reed"]}, {"tools": ["file_read"]}, "$.tools"),
    create("201 tools", {"tools": ["file_read"] * 201}, {"tools": ["file_read"] * 200}, "$.tools"),
    create("an unknown skill", {"skills": ["no-such-skill"]}, {"skills": []}, "$.skills"),
    create("a provider in words", {"provider_id": "1"}, {"provider_id": None}, "$.provider_id"),
    create("a huge provider", {"provider_id": HUGE}, {"provider_id": None}, "$.provider_id"),
    create("a provider of somebody else", {"provider_id": "{bobs provider}"},
           {"provider_id": "{provider}"}, "$.provider_id", status=404),
    create("a fallback of somebody else", {"fallbacks": [{"provider_id": "{bobs provider}"}]},
           {"fallbacks": [{"provider_id": "{provider}"}]}, "$.fallbacks[0].provider_id", status=404),
    create("six fallbacks", {"fallbacks": [{"provider_id": "{provider}"}] * 6},
           {"fallbacks": [{"provider_id": "{provider}"}] * 5}, "$.fallbacks"),
    create("a fallback with a name", {"fallbacks": [{"provider_id": "{provider}", "provider": "x"}]},
           {"fallbacks": [{"provider_id": "{provider}", "model": "x"}]}, "$.fallbacks[0].provider"),
    create("an unknown field", {"prompt": "x"}, {"system_prompt": "x"}, "$.prompt"),
    create("an id of one's own choice", {"id": 7}, {}, "$.id"),
    create("the agent of another user", {"user_id": 1}, {}, "$.user_id"),
    create("sharing, by one who is no ADMIN", {"is_shared": True}, {"is_shared": False}, status=403),
    create("three faults at once", {"name": "", "temperature": 3, "x": 1}, {"temperature": 1},
           "$.name", "$.temperature", "$.x"),
    Pair("a name twice", "POST", "/agents", '{"name": "a", "name": "b"}', '{"name": "a"}', ("$.name",)),
    Pair("half JSON", "POST", "/agents", '{"name": "a"', '{"name": "a"}', ("$",)),
    Pair("a list", "POST", "/agents", [{"name": "a"}], {"name": "a"}, ("$",)),
    Pair("a form", "POST", "/agents", "name=a", '{"name": "a"}', ("$",),
         headers={"content-type": "application/x-www-form-urlencoded"}),
]  # fmt: skip

CHANGED = [
    change("a name that is null", {"name": None}, {"name": "Changed"}, "$.name"),
    change("an unknown tool", {"name": "Changed", "tools": ["nothing"]}, {"tools": None}, "$.tools"),
    change("a provider of somebody else", {"name": "Changed", "provider_id": "{bobs provider}"},
           {"provider_id": None}, "$.provider_id", status=404),
    change("sharing, by one who is no ADMIN", {"name": "Changed", "is_shared": True},
           {"is_shared": False}, status=403),
    change("that it comes with Luxx", {"is_shipped": True}, {}, "$.is_shipped"),
    address("changing an agent of another tenant", "PUT", "/agents/{foreign}", AGENT, status=404, body={}),
    address("changing an agent of bob", "PUT", "/agents/{private}", AGENT, status=404, body={}),
    address("changing a huge agent", "PUT", f"/agents/{HUGE}", AGENT, status=404, body={}),
    address("changing one that comes with Luxx", "PUT", "/agents/{shipped}", AGENT, status=403,
            body={"name": "Changed"}),
]  # fmt: skip

ADDRESSES = [
    *(
        address(f"{what} of {whose}", "GET", f"/agents/{{{whose}}}{path}", f"{AGENT}{path}", status=404)
        for what, path in (("agent", ""), ("export", "/export"), ("activities", "/activities"))
        for whose in ("foreign", "private")
    ),
    address("an agent that is a word", "GET", "/agents/Writer", AGENT, status=404),
    address("an agent below zero", "GET", "/agents/-1", AGENT, status=404),
    address("an agent past 64 bits", "GET", f"/agents/{2**63}", AGENT, status=404),
    address("an export as XML", "GET", f"{AGENT}/export?format=xml", f"{AGENT}/export?format=json", "format"),
    address("an export with an unknown parameter", "GET", f"{AGENT}/export?as=json", f"{AGENT}/export", "as"),
    address("a page of 101 agents", "GET", "/agents?page_size=101", "/agents?page_size=100", "page_size"),
    address("page zero", "GET", "/agents?page=0", "/agents?page=1", "page"),
    address("activities of page one and a half", "GET", f"{AGENT}/activities?page=1.5",
            f"{AGENT}/activities?page=1", "page"),
    address("deleting an agent of another tenant", "DELETE", "/agents/{foreign}", "/agents/{spare}",
            status=404),
    address("deleting one that comes with Luxx", "DELETE", "/agents/{shipped}", "/agents/{other spare}",
            status=403),
    address("a verdict with an agent of another tenant", "GET",
            "/permissions/explain?tool=file_read&agent_id={foreign}",
            "/permissions/explain?tool=file_read&agent_id={agent}", status=404),
]  # fmt: skip

USED = [
    invoke("no visible character", {"content": " \n"}, {"content": "."}, "$.content"),
    invoke("content that is a list", {"content": ["hello"]}, {}, "$.content"),
    invoke("a conversation", {"conversation_id": "x"}, {}, "$.conversation_id"),
    invoke("an unknown tool", {"tools": ["nothing"]}, {"tools": ["file_list"]}, "$.tools"),
    invoke("a provider of somebody else", {"provider_id": "{bobs provider}"}, {"provider_id": "{provider}"},
           status=404),
    invoke("an attachment of two kinds",
           {"attachments": [{"name": "a", "content": "b", "file_id": "c"}]},
           {"attachments": [{"name": "a", "content": "b"}]}, "$.attachments[0].file_id"),
    invoke("a file of nobody", {"attachments": [{"file_id": "none"}]}, {"attachments": []}, status=404),
    address("calling an agent of another tenant", "POST", "/agents/{foreign}/invoke", INVOKE, status=404,
            body={"content": "hello"}),
    address("calling an agent of bob", "POST", "/agents/{private}/invoke", INVOKE, status=404,
            body={"content": "hello"}),
    Pair("a conversation with an agent of another tenant", "POST", "/conversations",
         {"agent_id": "{foreign}"}, {"agent_id": "{agent}"}, status=404),
    Pair("a conversation with an agent in words", "POST", "/conversations",
         {"agent_id": "Writer"}, {"agent_id": None}, ("$.agent_id",)),
    Pair("rules of an agent of another tenant", "PUT", "/permissions/rules?scope=agent&id={foreign}",
         [DENY], [DENY], status=404, right_path=RULES),
    Pair("rules of an agent in words", "PUT", "/permissions/rules?scope=agent&id=Writer", [DENY], [DENY],
         status=404, right_path=RULES),
    Pair("rules of no agent", "PUT", "/permissions/rules?scope=agent", [DENY], [DENY], ("id",),
         right_path=RULES),
    Pair("a rule that may be", "PUT", RULES, [DENY | {"action": "perhaps"}], [DENY], ("$[0].action",)),
]  # fmt: skip

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"
FORM = '--x\r\ncontent-disposition: form-data; name="file"\r\n\r\nversion: 1\r\n--x--\r\n'
DOCUMENTS = [
    imported("nothing", "", YAML, "$"),
    imported("text", "an agent", YAML, "$"),
    imported("a list", "- a\n- b\n", YAML, "$"),
    imported("no version", "name: Imported\n", YAML, "$.version"),
    imported("a later version", "version: 2\nname: Imported\n", YAML, "$.version"),
    imported("a version that is true", "version: true\nname: Imported\n", YAML, "$.version"),
    line("an unknown field", "colour: red", "color: '#ff0000'", "$.colour"),
    line("an id", "id: 7", "", "$.id"),
    line("sharing", "is_shared: true", "", "$.is_shared"),
    imported(
        "a name that YAML reads as false", "version: 1\nname: no\n", "version: 1\nname: 'no'\n", "$.name"
    ),
    line("a role that YAML reads as a date", "role: 2026-01-01", "role: '2026-01-01'", "$.role"),
    line("a date that there is not", "role: 2026-06-31", "role: '2026-06-31'"),
    line(
        "a prompt with an escaped NUL", 'system_prompt: "a\\0b"', 'system_prompt: "a\\tb"', "$.system_prompt"
    ),
    line(
        "half a character", 'system_prompt: "\\ud83d"', 'system_prompt: "\\ud83d\\ude00"', "$.system_prompt"
    ),
    imported(
        "a control character in a name", 'version: 1\nname: "a\\eb"\n', 'version: 1\nname: "ab"\n', "$.name"
    ),
    line("no number", "temperature: .nan", "temperature: 0.5", "$.temperature"),
    line("a huge number", f"max_tokens: {HUGE}", "max_tokens: 5", "$.max_tokens"),
    line("a number of 5000 digits", f"max_tokens: {'9' * 5000}", "max_tokens: 9"),
    line("a key that is a number", "1: x", "role: x", "$"),
    line("a key that is a list", "[a]: x", "role: x"),
    line("a key twice", "role: a\nrole: b", "role: b"),
    line("an alias", "role: &r a\nsystem_prompt: *r", "role: &r a\nsystem_prompt: a"),
    imported("aliases that multiply", f"{YAML}{BOMB}", YAML),
    line("merged keys", "<<: {role: a}", "role: a"),
    line("21 levels", f"tools: {'[' * 21}{']' * 21}", "tools: []"),
    imported("a million brackets", "[" * 150_000, YAML),
    line("30,000 values", f"tools: [{'a,' * 30_000}]", "tools: []"),
    line("200,001 characters", f"# {'x' * 200_000}", f"# {'x' * 100_000}"),
    line("an object of Python", "role: !!python/object:os.system x", "role: !!str x"),
    line("bytes", "role: !!binary aGVsbG8=", "role: hello", "$.role"),
    imported("two documents", f"---\n{YAML}---\n{YAML}", f"---\n{YAML}"),
    line("a tab for indentation", "rules:\n\t- x", "rules:\n  []"),
    imported(
        "a key twice in JSON", '{"version": 1, "name": "a", "name": "b"}', '{"version": 1,\t"name": "b"}'
    ),
    line("an unknown provider", "provider: nowhere", "provider: scripted", "$.provider"),
    line(
        "a fallback without a provider",
        "fallbacks: [{model: x}]",
        "fallbacks: [{provider: scripted}]",
        "$.fallbacks[0].provider",
    ),
    line(
        "an unknown fallback",
        "fallbacks: [{provider: nowhere}]",
        "fallbacks: [{provider: scripted}]",
        "$.fallbacks[0].provider",
    ),
    line(
        "names that are all unknown",
        "provider: nowhere\nfallbacks: [{provider: neither}]\ntools: [nothing]\nskills: [none]",
        "provider: scripted",
        "$.provider",
        "$.fallbacks[0].provider",
        "$.tools",
        "$.skills",
    ),
    line("an unknown tool", "tools: [nothing]", "tools: [file_read]", "$.tools"),
    line("an unknown skill", "skills: [nothing]", "skills: []", "$.skills"),
    line("201 rules", f"rules: {json.dumps([DENY] * 201)}", f"rules: {json.dumps([DENY] * 200)}", "$.rules"),
    line(
        "a rule with too many wildcards",
        f"rules: {json.dumps([DENY | {'pattern': '*a' * 50}])}",
        f"rules: {json.dumps([DENY])}",
        "$.rules[0].pattern",
    ),
    imported("a form with a file", FORM, YAML, headers={"content-type": "multipart/form-data; boundary=x"}),
    imported("Latin-1", "version: 1\nname: caf\xe9\n", "version: 1\nname: cafe\n", "$"),
]

PAIRS = [*CREATED, *CHANGED, *ADDRESSES, *USED, *DOCUMENTS]


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture(scope="module")
def elsewhere(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    """An ADMIN of another tenant."""
    tenant = admin.good("POST", "/admin/tenants", json={"name": "elsewhere"})["id"]
    body = {"username": "dora", "password": PASSWORD, "permission_level": 4, "tenant_id": tenant}
    admin.good("POST", "/auth/users", json=body)
    with ApiClient(server, document).sign_in("dora", PASSWORD) as person:
        yield person


@pytest.fixture(scope="module")
def known(anna: ApiClient, bob: ApiClient, elsewhere: ApiClient) -> dict[str, int]:
    """The ids that the requests name by placeholders."""
    listed = anna.good("GET", "/agents")["items"]
    return {
        "{agent}": anna.good("POST", "/agents", json={"name": "Writer"})["id"],
        "{spare}": anna.good("POST", "/agents", json={"name": "Spare"})["id"],
        "{other spare}": anna.good("POST", "/agents", json={"name": "Spare"})["id"],
        "{private}": bob.good("POST", "/agents", json={"name": "Private"})["id"],
        "{foreign}": elsewhere.good("POST", "/agents", json={"name": "Team", "is_shared": True})["id"],
        "{shipped}": listed[-1]["id"],
        "{provider}": anna.good("GET", "/providers")["items"][0]["id"],
        "{bobs provider}": bob.good("GET", "/providers")["items"][0]["id"],
    }


def filled(value: Any, known: dict[str, int]) -> Any:
    """The value with the ids for the placeholders: numbers in a body, digits in a path."""
    if isinstance(value, dict):
        return {name: filled(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, known) for item in value]
    return known.get(value, value) if isinstance(value, str) else value


def send(person: ApiClient, pair: Pair, path: str, body: Any, known: dict[str, int]) -> httpx.Response:
    for name, value in known.items():
        path = path.replace(name, str(value))
    content = b""
    if isinstance(body, str):
        content = body.encode("latin-1" if pair.name == "Latin-1" else "utf-8")
    elif body is not None:
        content = json.dumps(filled(body, known)).encode()
    headers = {"content-type": "application/json"} if content else {}
    return person.ask(pair.method, path, content=content, headers={**headers, **pair.headers})


@pytest.fixture(scope="module")
def stored(server: ServerProcess) -> Iterator[StoredContent]:
    with stored_content(server) as stored:
        yield stored


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair.method} {pair.path[:30]} {pair.name}" for pair in PAIRS])
def test_a_wrong_request_is_refused_and_the_right_one_passes(
    pair: Pair, anna: ApiClient, known: dict[str, int], stored: StoredContent
) -> None:
    before = stored.read()
    response = send(anna, pair, pair.path, pair.wrong, known)
    assert response.status_code == pair.status, response.text[:500]
    assert set(pair.fields) <= set(response.json()["detail"].get("fields", {})), response.text[:500]
    assert stored.read() == before, f"the request changed something: {response.text[:500]}"
    passed = send(anna, pair, pair.right_path or pair.path, pair.right, known)
    assert passed.is_success, passed.text[:500]


@pytest.mark.parametrize("default", ["{agent}", "{private}", "{foreign}", HUGE, "Writer", True, 0])
def test_a_wrong_default_agent_of_a_tenant_is_refused(
    default: Any, anna: ApiClient, admin: ApiClient, known: dict[str, int]
) -> None:
    before = admin.good("GET", "/tenant")
    refused = admin.ask("PUT", "/tenant", json=filled({"default_agent_id": default}, known))
    assert refused.status_code in (400, 404), refused.text
    assert admin.good("GET", "/tenant") == before
    right = {"default_agent_id": known["{shipped}"]}
    assert admin.good("PUT", "/tenant", json=right)["default_agent_id"] == known["{shipped}"]
    admin.good("PUT", "/tenant", json={"default_agent_id": None})
