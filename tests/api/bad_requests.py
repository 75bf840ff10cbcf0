"""Wrong requests of every kind and the refusal that each must get. `test_bad_input.py` sends them."""

from typing import Any

import msgspec

from api.client import PASSWORD

UNKNOWN_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
HUGE = 10**30
NUL = "a\x00b"


class Case(msgspec.Struct, frozen=True):
    """A request, the expected status and the JSON paths (or parameters) that the detail of the answer must
    name."""

    name: str
    method: str
    path: str
    body: Any = None
    status: int = 400
    fields: tuple[str, ...] = ()
    raw: bytes | None = None
    headers: dict[str, str] = {}
    who: str = "anna"


def wrong(name: str, method: str, path: str, body: Any, *fields: str, **more: Any) -> Case:
    return Case(name, method, path, body, fields=fields, **more)


def raw(name: str, content: bytes, status: int = 400, method: str = "POST", **more: Any) -> Case:
    return Case(name, method, more.pop("path", "/conversations"), raw=content, status=status, **more)


def deep(depth: int) -> bytes:
    return b'{"title": ' + b"[" * depth + b"]" * depth + b"}"


REGISTER, LOGIN, PEOPLE = "/auth/register", "/auth/login", {"who": "nobody"}
NEW = {"username": "carol", "password": PASSWORD}
TWICE = [
    raw("a message with two contents", b'{"conversation_id": "x", "content": "a", "content": "b"}',
        path="/messages", fields=("$.content",)),
    raw("a conversation with two titles, one escaped", b'{"title": "a", "\\u0074itle": "b"}',
        fields=("$.title",)),
    raw("tool arguments with two paths",
        b'{"arguments": {"path": "a.txt", "content": "a", "path": "b.txt"}}',
        path="/tools/file_write/execute", fields=("$.arguments.path",), who="admin"),
]  # fmt: skip

AUTH = [
    wrong("register with a username that is a number", "POST", REGISTER, NEW | {"username": 5}, "$.username"),
    wrong("register without a password", "POST", REGISTER, {"username": "carol"}, "$.password"),
    wrong("register as an administrator", "POST", REGISTER, NEW | {"role": "admin"}, "$.role"),
    wrong("register with a level", "POST", REGISTER, NEW | {"permission_level": 4}, "$.permission_level"),
    wrong("register with three faults", "POST", REGISTER, {"username": [], "x": 1},
          "$.username", "$.password", "$.x"),
    wrong("register with a short password", "POST", REGISTER, NEW | {"password": "abc"}, "$.password"),
    wrong("register with an endless password", "POST", REGISTER, NEW | {"password": "x" * 5000},
          "$.password"),
    wrong("register with a blank in the name", "POST", REGISTER, NEW | {"username": "a b c"}, "$.username"),
    wrong("register with a NUL in the name", "POST", REGISTER, NEW | {"username": NUL}, "$.username"),
    wrong("register with an endless name", "POST", REGISTER, NEW | {"username": "a" * 65}, "$.username"),
    wrong("register with an empty name", "POST", REGISTER, NEW | {"username": ""}, "$.username"),
    wrong("register with a line break", "POST", REGISTER, NEW | {"username": "carol\n"}, "$.username"),
    wrong("register with no e-mail address", "POST", REGISTER, NEW | {"email": "not one"}, "$.email"),
    wrong("register with a NUL in the address", "POST", REGISTER, NEW | {"email": "a\x00@b.c"}, "$.email"),
    Case("register a taken name", "POST", REGISTER, NEW | {"username": "{name}"}, 409),
    Case("sign in with a wrong password", "POST", LOGIN, {"username": "{name}", "password": "wrong"}, 401),
    Case("sign in as nobody known", "POST", LOGIN, {"username": "nobody", "password": "wrong"}, 401),
    wrong("sign in with a NUL", "POST", LOGIN, {"username": NUL, "password": "x"}, "$.username"),
    Case("sign in as somebody impossible", "POST", LOGIN, {"username": "' or 1=1 --", "password": "x"}, 401),
    wrong("sign in with null", "POST", LOGIN, {"username": None, "password": None},
          "$.username", "$.password"),
    wrong("sign in with an object", "POST", LOGIN, {"username": {"$ne": 1}, "password": "x"}, "$.username"),
    Case("refresh with garbage", "POST", "/auth/refresh", {"refresh_token": "garbage"}, 401),
    Case("refresh with an empty token", "POST", "/auth/refresh", {"refresh_token": ""}, 401),
    wrong("refresh with a NUL", "POST", "/auth/refresh", {"refresh_token": NUL}, "$.refresh_token"),
    wrong("refresh with a number", "POST", "/auth/refresh", {"refresh_token": 1}, "$.refresh_token"),
    wrong("change to a short password", "POST", "/auth/password",
          {"current_password": PASSWORD, "new_password": "x"}, "$.new_password"),
    wrong("change the password without the old", "POST", "/auth/password", {"new_password": PASSWORD},
          "$.current_password"),
    wrong("a level that there is not", "PUT", "/auth/users/{user}", {"permission_level": 5},
          "$.permission_level", who="admin"),
    wrong("level zero", "PUT", "/auth/users/{user}", {"permission_level": 0}, "$.permission_level",
          who="admin"),
    wrong("a level in words", "PUT", "/auth/users/{user}", {"permission_level": "4"},
          "$.permission_level", who="admin"),
    wrong("a level that is true", "PUT", "/auth/users/{user}", {"permission_level": True},
          "$.permission_level", who="admin"),
    wrong("active in words", "PUT", "/auth/users/{user}", {"is_active": "no"}, "$.is_active", who="admin"),
    wrong("a role that does not follow the level", "PUT", "/auth/users/{user}", {"role": "admin"},
          "$.role", who="admin"),
    Case("a user that there is not", "PUT", "/auth/users/999999", {"is_active": True}, 404, who="admin"),
    Case("a user of a huge id", "PUT", f"/auth/users/{HUGE}", {"is_active": True}, 404, who="admin"),
    Case("one's own level", "PUT", "/auth/users/{user}", {"permission_level": 4}, 403),
    Case("users, for one who is no ADMIN", "GET", "/auth/users", None, 403),
]  # fmt: skip

CONVERSATIONS = [
    wrong("a title that is a list", "POST", "/conversations", {"title": ["x"]}, "$.title"),
    wrong("an empty title", "POST", "/conversations", {"title": ""}, "$.title"),
    wrong("an endless title", "POST", "/conversations", {"title": "x" * 100_000}, "$.title"),
    wrong("an id of one's own choice", "POST", "/conversations", {"id": UNKNOWN_ID}, "$.id"),
    wrong("somebody else's conversation", "POST", "/conversations", {"user_id": 1}, "$.user_id"),
    wrong("a temperature in words", "POST", "/conversations", {"temperature": "hot"}, "$.temperature"),
    wrong("a temperature too high", "POST", "/conversations", {"temperature": 2.1}, "$.temperature"),
    wrong("a temperature below zero", "PUT", "/conversations/{conversation}", {"temperature": -0.1},
          "$.temperature"),
    wrong("no tokens at all", "POST", "/conversations", {"max_tokens": 0}, "$.max_tokens"),
    wrong("huge tokens", "POST", "/conversations", {"max_tokens": HUGE}, "$.max_tokens"),
    wrong("half a token", "POST", "/conversations", {"max_tokens": 1.5}, "$.max_tokens"),
    wrong("a provider of a huge id", "POST", "/conversations", {"provider_id": HUGE}, "$.provider_id"),
    wrong("a provider in words", "POST", "/conversations", {"provider_id": "1"}, "$.provider_id"),
    wrong("pinned in the word true", "PUT", "/conversations/{conversation}", {"pinned": "true"}, "$.pinned"),
    wrong("a temperature that is a text", "POST", "/conversations", {"temperature": "1.0"}, "$.temperature"),
    wrong("pinned in words", "PUT", "/conversations/{conversation}", {"pinned": "yes"}, "$.pinned"),
    wrong("tags that are no list", "PUT", "/conversations/{conversation}", {"tags": "a,b"}, "$.tags"),
    wrong("a tag that is a number", "PUT", "/conversations/{conversation}", {"tags": ["a", 1]}, "$.tags[1]"),
    wrong("a title with a NUL", "POST", "/conversations", {"title": NUL}, "$.title"),
    wrong("a tag with a NUL", "PUT", "/conversations/{conversation}", {"tags": ["a", NUL]}, "$.tags[1]"),
    wrong("a title that is null", "PUT", "/conversations/{conversation}", {"title": None}, "$.title"),
    wrong("one right and two wrong fields", "PUT", "/conversations/{conversation}",
          {"title": "changed", "pinned": 1, "nothing": 1}, "$.pinned", "$.nothing"),
    Case("a provider that there is not", "POST", "/conversations", {"provider_id": 999_999}, 404),
    Case("a conversation that there is not", "GET", f"/conversations/{UNKNOWN_ID}", None, 404),
    Case("changing what is not there", "PUT", f"/conversations/{UNKNOWN_ID}", {"title": "x"}, 404),
    Case("deleting what is not there", "DELETE", f"/conversations/{UNKNOWN_ID}", None, 404),
    Case("a conversation with a NUL", "GET", "/conversations/a%00b", None, 400),
    Case("a conversation of a wild name", "GET", "/conversations/%F0%9F%92%A3%27%22--", None, 404),
    Case("a conversation whose id is no UTF-8", "GET", "/conversations/%ff%fe", None, 404),
    Case("a conversation of an endless id", "GET", "/conversations/" + "x" * 5000, None, 404),
]  # fmt: skip

PAGING = [
    Case(f"{path} {query}", "GET", f"{path}?{query}", fields=(query.partition("=")[0],), who=who)
    for path, who in (
        ("/conversations", "anna"), ("/providers", "anna"), ("/runs", "anna"), ("/tools", "anna"),
        ("/files", "anna"), ("/projects", "anna"), ("/tools/compositions", "anna"),
        ("/messages?conversation_id={conversation}", "anna"), ("/auth/users", "admin"),
    )
    for query in ("page=0", "page=-1", "page=x", "page=1.5", "page=", f"page={HUGE}",
                  "page_size=0", "page_size=101", "page_size=-5", "page_size=many", f"page_size={HUGE}")
]  # fmt: skip

MESSAGES = [
    *(
        case
        for path in ("/messages", "/messages/stream")
        for case in (
            wrong(f"{path} empty", "POST", path, {"conversation_id": "{conversation}", "content": ""},
                  "$.content"),
            wrong(f"{path} blank", "POST", path, {"conversation_id": "{conversation}", "content": " \n\t "},
                  "$.content"),
            wrong(f"{path} null", "POST", path, {"conversation_id": "{conversation}", "content": None},
                  "$.content"),
            wrong(f"{path} no content", "POST", path, {"conversation_id": "{conversation}"}, "$.content"),
            wrong(f"{path} no conversation", "POST", path, {"content": "hello"}, "$.conversation_id"),
            wrong(f"{path} a role", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x", "role": "system"}, "$.role"),
            wrong(f"{path} tools in words", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x", "tools": "all"}, "$.tools"),
            wrong(f"{path} tools that are numbers", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x", "tools": ["file_read", 1]},
                  "$.tools[1]"),
            Case(f"{path} an unknown tool", "POST", path,
                 {"conversation_id": "{conversation}", "content": "x", "tools": ["no_such_tool"]}, 400),
            wrong(f"{path} thinking in words", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x", "thinking_enabled": "yes"},
                  "$.thinking_enabled"),
            wrong(f"{path} an attachment without content", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x", "attachments": [{"name": "a"}]},
                  "$.attachments[0].content"),
            wrong(f"{path} an attachment with more", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x",
                   "attachments": [{"name": "a", "content": "b", "path": "/etc/passwd"}]},
                  "$.attachments[0].path"),
            Case(f"{path} to nowhere", "POST", path, {"conversation_id": UNKNOWN_ID, "content": "x"}, 404),
            wrong(f"{path} to a NUL", "POST", path, {"conversation_id": NUL, "content": "x"},
                  "$.conversation_id"),
            wrong(f"{path} with a NUL", "POST", path,
                  {"conversation_id": "{conversation}", "content": NUL}, "$.content"),
            Case(f"{path} by an unknown provider", "POST", path,
                 {"conversation_id": "{conversation}", "content": "x", "provider_id": 999_999}, 404),
            wrong(f"{path} by a huge provider", "POST", path,
                  {"conversation_id": "{conversation}", "content": "x", "provider_id": HUGE},
         "$.provider_id"),
        )
    ),
    Case("messages of no conversation", "GET", "/messages", fields=("conversation_id",)),
    Case("messages of nowhere", "GET", f"/messages?conversation_id={UNKNOWN_ID}", status=404),
    Case("messages of a NUL", "GET", "/messages?conversation_id=%00"),
    Case("an endless cursor", "GET", "/messages?conversation_id={conversation}&before=" + "x" * 500,
         fields=("before",)),
    Case("an empty cursor", "GET", "/messages?conversation_id={conversation}&before=", fields=("before",)),
    Case("a limit of none", "GET", "/messages?conversation_id={conversation}&limit=0", fields=("limit",)),
    Case("a limit too large", "GET", "/messages?conversation_id={conversation}&limit=101", fields=("limit",)),
    Case("deleting no message", "DELETE", f"/messages/{UNKNOWN_ID}", status=404),
    Case("deleting a NUL", "DELETE", "/messages/%00"),
]  # fmt: skip

PROVIDER = {"name": "p", "provider_type": "openai", "base_url": "https://models.example/v1"}
PROVIDERS = [
    wrong("a provider without a name", "POST", "/providers", {"provider_type": "openai"}, "$.name"),
    wrong("a provider of a blank name", "POST", "/providers", PROVIDER | {"name": "  "}, "$.name"),
    wrong("a provider that ends in a line break", "POST", "/providers", PROVIDER | {"name": "p\n"}, "$.name"),
    wrong("a provider with a NUL", "POST", "/providers", PROVIDER | {"name": NUL}, "$.name"),
    wrong("a provider of somebody", "POST", "/providers", PROVIDER | {"user_id": 1}, "$.user_id"),
    wrong("no tokens", "POST", "/providers", PROVIDER | {"max_tokens": 0}, "$.max_tokens"),
    wrong("a key that is a number", "POST", "/providers", PROVIDER | {"api_key": 5}, "$.api_key"),
    Case("a key with a line break", "POST", "/providers", PROVIDER | {"api_key": "a\nb"},
         fields=("$.api_key",)),
    Case("a key that is not ASCII", "POST", "/providers", PROVIDER | {"api_key": "schlüssel"},
         fields=("$.api_key",)),
    Case("a type that there is not", "POST", "/providers", PROVIDER | {"provider_type": "telepathy"},
         fields=("$.provider_type",)),
    Case("an address that is none", "POST", "/providers", PROVIDER | {"base_url": "not a url"},
         fields=("$.base_url",)),
    Case("an address without a host", "POST", "/providers", PROVIDER | {"base_url": "http://"},
         fields=("$.base_url",)),
    Case("a file", "POST", "/providers", PROVIDER | {"base_url": "file:///etc/passwd"},
         fields=("$.base_url",)),
    Case("another protocol", "POST", "/providers", PROVIDER | {"base_url": "gopher://models.example/"},
         fields=("$.base_url",)),
    Case("a port too large", "POST", "/providers", PROVIDER | {"base_url": "http://models.example:70000/"},
         fields=("$.base_url",)),
    Case("a host of dots", "POST", "/providers", PROVIDER | {"base_url": "http://a..b/"},
         fields=("$.base_url",)),
    Case("a type without an address", "POST", "/providers",
         {"name": "p", "provider_type": "openai_compatible"}, fields=("$.base_url",)),
    Case("a loopback address", "POST", "/providers", PROVIDER | {"base_url": "http://127.0.0.1:1/v1"}, 403),
    Case("a private address", "POST", "/providers", PROVIDER | {"base_url": "http://10.0.0.1/v1"}, 403),
    Case("the metadata address", "POST", "/providers",
         PROVIDER | {"base_url": "http://169.254.169.254/v1"}, 403),
    Case("the metadata address, for an ADMIN", "POST", "/providers",
         PROVIDER | {"base_url": "http://169.254.169.254/v1"}, 403, who="admin"),
    Case("sharing, for one who is no ADMIN", "POST", "/providers", PROVIDER | {"is_shared": True}, 403),
    Case("a provider that is not there", "GET", "/providers/999999", None, 404),
    Case("a provider below zero", "GET", "/providers/-1", None, 404),
    Case("a huge provider", "GET", f"/providers/{HUGE}", None, 404),
    Case("a provider past 64 bits", "DELETE", f"/providers/{2**63}", None, 404),
    Case("testing what is not there", "POST", "/providers/999999/test", None, 404),
    Case("models of what is not there", "GET", "/providers/999999/models", None, 404),
    wrong("changing the owner", "PUT", "/providers/{provider}", {"user_id": 1}, "$.user_id"),
    wrong("enabled in words", "PUT", "/providers/{provider}", {"enabled": "no"}, "$.enabled"),
    Case("moving to a private address", "PUT", "/providers/{provider}",
         {"base_url": "http://192.168.0.1/v1"}, 403),
    Case("allowed hosts, for one who is no ADMIN", "GET", "/admin/allowed-hosts", None, 403),
    Case("allowing hosts, for one who is no ADMIN", "PUT", "/admin/allowed-hosts", {"hosts": []}, 403),
    wrong("hosts that are no list", "PUT", "/admin/allowed-hosts", {"hosts": "a:1"}, "$.hosts", who="admin"),
    wrong("a host that is a number", "PUT", "/admin/allowed-hosts", {"hosts": [1]}, "$.hosts[0]",
          who="admin"),
    Case("a host without a port", "PUT", "/admin/allowed-hosts", {"hosts": ["a:1", "localhost"]}, who="admin",
         fields=("$.hosts[1]",)),
    Case("a host with a wrong port", "PUT", "/admin/allowed-hosts", {"hosts": ["a:99999"]}, who="admin",
         fields=("$.hosts[0]",)),
    Case("the metadata host", "PUT", "/admin/allowed-hosts", {"hosts": ["169.254.169.254:80"]}, who="admin",
         fields=("$.hosts[0]",)),
    wrong("no hosts", "PUT", "/admin/allowed-hosts", {}, "$.hosts", who="admin"),
]  # fmt: skip

TOOLS_RUNS_SETTINGS = [
    Case("a tool that there is not", "GET", "/tools/no_such_tool", None, 404),
    Case("running a tool that there is not", "POST", "/tools/no_such_tool/execute", {"arguments": {}}, 404),
    Case("a tool with a NUL", "GET", "/tools/a%00b"),
    wrong("arguments that are a string", "POST", "/tools/file_read/execute", {"arguments": "{}"},
          "$.arguments"),
    wrong("arguments that are a list", "POST", "/tools/file_read/execute", {"arguments": []}, "$.arguments"),
    wrong("a field beside the arguments", "POST", "/tools/file_read/execute",
          {"arguments": {"path": "a"}, "user_id": 1}, "$.user_id"),
    Case("an argument of a wrong type", "POST", "/tools/file_read/execute", {"arguments": {"path": 5}}),
    Case("a missing argument", "POST", "/tools/file_read/execute", {"arguments": {}}),
    Case("an argument too many", "POST", "/tools/file_read/execute", {"arguments": {"path": "a", "x": 1}}),
    Case("a tool above the level", "POST", "/tools/file_write/execute",
         {"arguments": {"path": "a", "content": "b"}}, 403),
    Case("an endless category", "GET", "/tools?category=" + "x" * 100, fields=("category",)),
    Case("a run that there is not", "GET", f"/runs/{UNKNOWN_ID}", None, 404),
    Case("a run with a NUL", "GET", "/runs/%00"),
    Case("cancelling nothing", "POST", f"/runs/{UNKNOWN_ID}/cancel", None, 404),
    Case("events of nothing", "GET", f"/runs/{UNKNOWN_ID}/events", None, 404),
    Case("runs of an unknown status", "GET", "/runs?status=sleeping", fields=("status",)),
    Case("runs of an unknown kind", "GET", "/runs?kind=party", fields=("kind",)),
    *(
        Case(f"Last-Event-ID {value!r}", "GET", "/runs/{run}/events", headers={"Last-Event-ID": value},
             fields=("Last-Event-ID",))
        for value in ("x", "-1", "1.5", "9" * 30, "1, 2", "0x10", "100000", "²")
        if value.isascii()
    ),
    *(
        Case(f"last_event_id {value!r}", "GET", f"/runs/{{run}}/events?last_event_id={value}",
             fields=("last_event_id",))
        for value in ("x", "-1", "1.5", "9" * 30, "100000")
    ),
    Case("events from beyond the log", "GET", "/runs/{run}/events?from_sequence=100000",
         fields=("from_sequence",), headers={"Accept": "application/json"}),
    *(
        Case(f"{path} before {value!r}", "GET", f"{path}before={value}", fields=("before",), who="admin")
        for path in ("/runs?", "/messages?conversation_id={conversation}&", "/admin/audit?")
        for value in ("zzzz", "7", UNKNOWN_ID[:-1], UNKNOWN_ID.upper())
    ),
    Case("a parameter that there is not", "GET", "/runs?kid=chat", fields=("kid",)),
    Case("two parameters that there are not", "GET", "/conversations/{conversation}?a=1&b=2",
         fields=("a", "b")),
    Case("a filter of another route", "POST", "/conversations?page=1", {}, fields=("page",)),
    Case("cancelling with a body", "POST", "/runs/{run}/cancel", {"force": True}, fields=("$",)),
    Case("reading with a body", "GET", "/runs", {"status": "failed"}, fields=("$",)),
    Case("deleting with a body", "DELETE", "/conversations/{conversation}", [1], fields=("$",)),
    Case("a folder outside", "GET", "/files?path=../x", fields=("path",)),
    Case("events from below zero", "GET", "/runs/{run}/events?from_sequence=-1", fields=("from_sequence",),
         headers={"Accept": "application/json"}),
    Case("no events at all", "GET", "/runs/{run}/events?limit=0", fields=("limit",),
         headers={"Accept": "application/json"}),
    Case("accumulated perhaps", "GET", "/runs/{run}/events?accumulated=perhaps", fields=("accumulated",)),
    wrong("settings too hot", "PUT", "/settings", {"temperature": 5}, "$.temperature"),
    wrong("settings in words", "PUT", "/settings", {"max_tokens": "many"}, "$.max_tokens"),
    wrong("settings of somebody", "PUT", "/settings", {"user_id": 1}, "$.user_id"),
    wrong("settings that are true", "PUT", "/settings", {"max_tokens": True}, "$.max_tokens"),
    wrong("settings with a huge provider", "PUT", "/settings", {"default_provider_id": HUGE},
          "$.default_provider_id"),
    wrong("settings with a NUL", "PUT", "/settings", {"system_prompt": NUL}, "$.system_prompt"),
    Case("settings with no such provider", "PUT", "/settings", {"default_provider_id": 999_999}, 404),
    Case("titles by no such provider", "PUT", "/settings", {"title_provider_id": 999_999}, 404),
    Case("a tenant's titles by no such provider", "PUT", "/tenant", {"title_provider_id": 999_999}, 404,
         who="admin"),
    Case("titles by a model of no provider", "PUT", "/settings", {"title_model": "small"}, 400),
    wrong("titles in another mode", "PUT", "/settings", {"titles": "sometimes"}, "$.titles"),
    wrong("one right and one wrong setting", "PUT", "/settings",
          {"temperature": 0.5, "thinking_enabled": "x"}, "$.thinking_enabled"),
]  # fmt: skip

FILES = [
    Case("a file that there is not", "GET", f"/files/{UNKNOWN_ID}", None, 404),
    Case("deleting no file", "DELETE", f"/files/{UNKNOWN_ID}", None, 404),
    Case("a file with a NUL", "GET", "/files/%00"),
    Case("a file by its path", "GET", "/files/..%2F..%2Fetc%2Fpasswd", None, 404),
    Case("a folder with a NUL", "GET", "/files?path=a%00b"),
    Case("a folder above", "GET", "/files?path=.."),
    Case("a folder of the host", "GET", "/files?path=/etc", None, 404),
    Case("a folder of an endless name", "GET", "/files?path=" + "x" * 5000, fields=("path",)),
    Case("a folder that there is not", "GET", "/files?path=nowhere", None, 404),
    raw("an upload that is JSON", b"{}", path="/files", fields=("Content-Type",)),
    raw("an upload of nothing", b"", path="/files", fields=("Content-Type",)),
    raw("an attachment by no number", b"", 404, "GET", path="/messages/{message}/attachments/x"),
    raw("an attachment that there is not", b"", 404, "GET", path="/messages/{message}/attachments/0"),
    raw("an attachment of nothing", b"", 404, "GET", path=f"/messages/{UNKNOWN_ID}/attachments/0"),
    raw("an attachment of a huge number", b"", 400, "GET", path=f"/messages/{{message}}/attachments/{HUGE}"),
]  # fmt: skip

SEARCHES = [
    Case("searching for nothing", "GET", "/search", fields=("q",)),
    Case("searching for an empty text", "GET", "/search?q=", fields=("q",)),
    Case("searching for too much", "GET", "/search?q=" + "x" * 201, fields=("q",)),
    Case("searching for a NUL", "GET", "/search?q=a%00b"),
    Case("searching in an unknown kind", "GET", "/search?q=a&kind=dream", fields=("kind",)),
    Case("searching in an unknown order", "GET", "/search?q=a&sort=oldest", fields=("sort",)),
    Case("searching page zero", "GET", "/search?q=a&page=0", fields=("page",)),
    Case("searching with a page too large", "GET", "/search?q=a&page_size=101", fields=("page_size",)),
    Case("searching where nothing is", "GET", f"/search?q=a&conversation_id={UNKNOWN_ID}", None, 404),
]  # fmt: skip

BODIES = [
    raw("no body", b""),
    raw("half a body", b'{"title": "x"'),
    raw("two bodies", b"{}{}"),
    raw("a list", b"[]"),
    raw("a number", b"1"),
    raw("null", b"null"),
    raw("a text", b'"title"'),
    raw("NaN", b'{"temperature": NaN}'),
    raw("Infinity", b'{"temperature": Infinity}'),
    raw("a number past all floats", b'{"temperature": 1e999}'),
    raw("a number of 5000 digits", b'{"max_tokens": ' + b"9" * 5000 + b"}"),
    raw("a lone surrogate", b'{"title": "\\ud800"}'),
    raw("half a surrogate pair", b'{"title": "\\udc00x"}'),
    raw("no UTF-8", b'{"title": "\xff\xfe"}'),
    raw("UTF-16", '{"title": "x"}'.encode("utf-16")),
    raw("single quotes", b"{'title': 'x'}"),
    raw("a NUL outside of strings", b'{"title": "x"}\x00'),
    raw("a bare NUL in a string", b'{"title": "\x00"}'),
    raw("nested 100,000 deep", deep(100_000)),
    raw("nested 5,000 deep", deep(5_000)),
    raw("objects nested 50,000 deep", b'{"title":' * 50_000 + b"1" + b"}" * 50_000),
    raw("arguments nested 100,000 deep", b'{"arguments": {"path": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        path="/tools/file_read/execute"),
    raw("XML", b"<title>x</title>", headers={"content-type": "application/xml"}),
    raw("a form", b"title=x", headers={"content-type": "application/x-www-form-urlencoded"}),
    raw("a gzip that is none", b'{"title": "x"', headers={"content-encoding": "gzip"}),
    raw("a body past the limit", b'{"title": "' + b"x" * 11_000_000 + b'"}', 413),
    raw("a public route's body past the limit", b" " * 11_000_000, 413, path=LOGIN, **PEOPLE),
    raw("a body past the limit for nowhere", b" " * 11_000_000, 413, path="/nowhere"),
]  # fmt: skip

ROUTES = [
    *(
        Case(f"{method} {path}", method, path, None, 405)
        for method, path in (
            ("PATCH", "/conversations"), ("DELETE", "/health"), ("POST", "/auth/me"), ("GET", "/auth/login"),
            ("PUT", "/messages"), ("DELETE", "/providers"), ("POST", "/settings"), ("PUT", "/runs"),
            ("GET", "/messages/stream"), ("TRACE", "/health"), ("POST", "/openapi.json"),
        )
    ),
    *(
        Case(f"GET {path}", "GET", path, None, 404)
        for path in ("/nothing", "/auth/nothing", "/conversations/a/b/c", "/api/v1", "/admin",
                     "/%2e%2e/%2e%2e/etc/passwd", "/ui/../../etc/passwd", "/ui/%2e%2e%2fconfig.yaml",
                     "/docs/../config.yaml", "/.env",
                      "/static/%2e%2e/%2e%2e/luxx/app/cli/commands.py", "/" + "x" * 8000)
    ),
    Case("a path with a NUL", "GET", "/nothing%00"),
    Case("a cursor with a NUL", "GET", "/runs?before=%00"),
    Case("a page with a NUL", "GET", "/conversations?page=%00"),
    Case("a path that is no UTF-8", "GET", "/%ff", None, 404),
]  # fmt: skip

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
ANSWER = {"type": "json_schema", "schema": SCHEMA}


def nested(depth: int) -> dict[str, Any]:
    """A schema with `depth` levels of nested schemas."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def formats(path: str, more: dict[str, Any]) -> list[Case]:
    """Wrong values of `response_format`; the model of these tests is not known to support any format."""
    at, schema = "$.response_format", "$.response_format.schema"

    def asked(name: str, value: Any, *fields: str) -> Case:
        return wrong(f"{path}: {name}", "POST", path, more | {"response_format": value}, *fields)

    return [
        asked("a format that is a text", "json", at),
        asked("a format of another type", ANSWER | {"type": "json_object"}, f"{at}.type"),
        asked("a format without a schema", {"type": "json_schema"}, schema),
        asked("a schema that is a list", ANSWER | {"schema": []}, schema),
        asked("a schema of an array", ANSWER | {"schema": {"type": "array"}}, schema),
        asked("a schema of nothing", ANSWER | {"schema": {}}, schema),
        asked("a schema that is none", ANSWER | {"schema": {"type": "object", "required": 5}}, schema),
        asked("a schema too deep", ANSWER | {"schema": nested(40)}, schema),
        asked("a schema deeper than any stack", ANSWER | {"schema": nested(400)}, schema),
        asked("a schema too large", ANSWER | {"schema": SCHEMA | {"title": "x" * 70_000}}, schema),
        asked("a schema of too many parts", ANSWER | {"schema": SCHEMA | {"anyOf": [True] * 2000}}, schema),
        asked("a schema with a NUL", ANSWER | {"schema": SCHEMA | {"title": NUL}}, f"{schema}.title"),
        asked("a format with a wild name", ANSWER | {"name": "a b"}, f"{at}.name"),
        asked("a format with an unknown field", ANSWER | {"strict": True}, f"{at}.strict"),
    ]


EDIT, FORK = "/messages/{asked}", "/conversations/{conversation}/fork"
AGAIN = "/messages/{message}/regenerate"
BRANCHES = [
    wrong("an edit without content", "PUT", EDIT, {}, "$.content"),
    wrong("an edit into nothing", "PUT", EDIT, {"content": " "}, "$.content"),
    wrong("an edit with a NUL", "PUT", EDIT, {"content": NUL}, "$.content"),
    wrong("an edit into something endless", "PUT", EDIT, {"content": "x" * 1_000_001}, "$.content"),
    wrong("an edit of the role", "PUT", EDIT, {"content": "x", "role": "assistant"}, "$.role"),
    wrong("an edit with a file that is a text", "PUT", EDIT, {"content": "x", "attachments": ["a"]},
          "$.attachments[0]"),
    wrong("an edit of an answer with a file", "PUT", "/messages/{message}",
          {"content": "x", "attachments": [{"name": "a.txt", "content": "a"}]}, "$.attachments"),
    Case("an edit of nothing", "PUT", f"/messages/{UNKNOWN_ID}", {"content": "x"}, 404),
    Case("an edit of a NUL", "PUT", "/messages/%00", {"content": "x"}),
    wrong("regenerating with a list", "POST", AGAIN, [], "$"),
    wrong("regenerating other words", "POST", AGAIN, {"content": "x"}, "$.content"),
    wrong("regenerating with an unknown tool", "POST", AGAIN, {"tools": ["no_such_tool"]}, "$.tools"),
    wrong("regenerating with tools in words", "POST", AGAIN, {"tools": "all"}, "$.tools"),
    wrong("regenerating by a huge provider", "POST", AGAIN, {"provider_id": HUGE}, "$.provider_id"),
    wrong("regenerating by an empty model", "POST", AGAIN, {"model": ""}, "$.model"),
    Case("regenerating by no provider", "POST", AGAIN, {"provider_id": 999_999}, 404),
    Case("regenerating nothing", "POST", f"/messages/{UNKNOWN_ID}/regenerate", {}, 404),
    Case("regenerating a NUL", "POST", "/messages/%00/regenerate", {}),
    *formats(AGAIN, {}),
    *formats("/messages", {"conversation_id": "{conversation}", "content": "x"}),
    *formats("/messages/stream", {"conversation_id": "{conversation}", "content": "x"}),
    wrong("sending below a number", "POST", "/messages",
          {"conversation_id": "{conversation}", "content": "x", "parent_id": 1}, "$.parent_id"),
    Case("sending below nothing", "POST", "/messages",
         {"conversation_id": "{conversation}", "content": "x", "parent_id": UNKNOWN_ID}, 404),
    wrong("selecting null", "PUT", "/conversations/{conversation}", {"selected_leaf_id": None},
          "$.selected_leaf_id"),
    wrong("selecting at birth", "POST", "/conversations", {"selected_leaf_id": "{message}"},
          "$.selected_leaf_id"),
    wrong("temporary by a word", "POST", "/conversations", {"is_temporary": "yes"}, "$.is_temporary"),
    wrong("temporary too late", "PUT", "/conversations/{conversation}", {"is_temporary": True},
          "$.is_temporary"),
    Case("selecting nothing", "PUT", "/conversations/{conversation}", {"selected_leaf_id": UNKNOWN_ID}, 404),
    Case("selecting nothing and naming it", "PUT", "/conversations/{conversation}",
         {"title": "changed", "selected_leaf_id": UNKNOWN_ID}, 404),
    Case("a tree of nothing", "GET", f"/conversations/{UNKNOWN_ID}/tree", None, 404),
    Case("forking nothing", "POST", f"/conversations/{UNKNOWN_ID}/fork", {}, 404),
    Case("forking from nothing", "POST", FORK, {"message_id": UNKNOWN_ID}, 404),
    wrong("forking from a number", "POST", FORK, {"message_id": 7}, "$.message_id"),
    wrong("forking under another name", "POST", FORK, {"title": "x"}, "$.title"),
    wrong("forking with half a body", "POST", FORK, "x", "$"),
]  # fmt: skip

QUEUE, WAITING = "/conversations/{conversation}/queue", "/conversations/{conversation}/queue/" + UNKNOWN_ID
COMPARISON = "/conversations/{conversation}/comparison"
COMPARED = {"content": "x", "compare_with": {"provider_id": 1, "model": "y"}}
CHAT = {"conversation_id": "{conversation}", "content": "x"}
AGENT = {"name": "Bad"}
LONG_WORK = [
    Case("the queue of nothing", "GET", f"/conversations/{UNKNOWN_ID}/queue", None, 404),
    Case("the queue of a NUL", "GET", "/conversations/%00/queue", None),
    Case("resuming the queue of nothing", "POST", f"/conversations/{UNKNOWN_ID}/queue/resume", None, 404),
    Case("changing what does not wait", "PUT", WAITING, {"content": "x"}, 404),
    Case("changing a NUL", "PUT", f"{QUEUE}/%00", {"content": "x"}),
    wrong("changing a waiting message to nothing", "PUT", WAITING, {"content": ""}, "$.content"),
    wrong("changing a waiting message to a number", "PUT", WAITING, {"content": 7}, "$.content"),
    wrong("changing a waiting message to something endless", "PUT", WAITING, {"content": "x" * 1_000_001},
          "$.content"),
    wrong("a mode that there is not", "PUT", WAITING, {"mode": "interrupt"}, "$.mode"),
    wrong("moving a waiting message to the front", "PUT", WAITING, {"position": 1}, "$.position"),
    wrong("changing a waiting message with a list", "PUT", WAITING, [], "$"),
    Case("deleting what does not wait", "DELETE", WAITING, None, 404),
    Case("the comparison of nothing", "GET", f"/conversations/{UNKNOWN_ID}/comparison", None, 404),
    Case("comparing in nothing", "POST", f"/conversations/{UNKNOWN_ID}/comparison", COMPARED, 404),
    wrong("comparing with nothing", "POST", COMPARISON, {"content": "x"}, "$.compare_with"),
    wrong("comparing no words", "POST", COMPARISON, COMPARED | {"content": " "}, "$.content"),
    wrong("comparing with a model alone", "POST", COMPARISON, COMPARED | {"compare_with": {"model": "y"}},
          "$.compare_with.provider_id"),
    wrong("comparing with an agent", "POST", COMPARISON,
          COMPARED | {"compare_with": {"agent_id": 1, "provider_id": 1, "model": "y"}},
          "$.compare_with.agent_id"),
    wrong("comparing two others", "POST", COMPARISON, COMPARED | {"compare_with": []}, "$.compare_with"),
    wrong("comparing with a plan", "POST", COMPARISON, COMPARED | {"planning": "on"}, "$.planning"),
    wrong("comparing later", "POST", COMPARISON, COMPARED | {"when_busy": "queue"}, "$.when_busy"),
    wrong("busy in other words", "POST", "/messages", CHAT | {"when_busy": "wait"}, "$.when_busy"),
    wrong("busy as a boolean", "POST", "/messages/stream", CHAT | {"when_busy": True}, "$.when_busy"),
    Case("steering nothing", "POST", "/messages",
         {"conversation_id": UNKNOWN_ID, "content": "x", "when_busy": "steer"}, 404),
    wrong("planning in other words", "POST", "/messages", CHAT | {"planning": "sometimes"}, "$.planning"),
    wrong("planning as a boolean", "POST", "/conversations", {"planning": True}, "$.planning"),
    wrong("a plan for every answer", "PUT", "/settings", {"planning": "yes"}, "$.planning"),
    wrong("words that choose sometimes", "PUT", "/settings", {"routing": "maybe"}, "$.routing"),
    wrong("a routed conversation", "POST", "/conversations", {"routing": True}, "$.routing"),
    wrong("an agent of a number", "POST", "/agents", AGENT | {"project_id": 7}, "$.project_id"),
    wrong("an agent of no project's id", "POST", "/agents", AGENT | {"project_id": ""}, "$.project_id"),
    wrong("an agent that is routed", "POST", "/agents", AGENT | {"routing": "on"}, "$.routing"),
    wrong("an agent that plans a number", "POST", "/agents", AGENT | {"planning": 1}, "$.planning"),
    wrong("an agent that thinks in words", "POST", "/agents", AGENT | {"prompted_thinking": "yes"},
          "$.prompted_thinking", who="admin"),
    wrong("a trigger without a phrase", "POST", "/agents", AGENT | {"trigger_patterns": [{"pattern": ""}]},
          "$.trigger_patterns[0].pattern"),
    wrong("a trigger without weight", "POST", "/agents",
          AGENT | {"trigger_patterns": [{"pattern": "x", "weight": 0}]}, "$.trigger_patterns[0].weight"),
    wrong("a trigger of another type", "POST", "/agents", AGENT | {"trigger_type": "vector"},
          "$.trigger_type"),
    wrong("an agent enabled in words", "POST", "/agents", AGENT | {"enabled": "no"}, "$.enabled"),
    wrong("matching without a text", "POST", "/agents/match", {"text": ""}, "$.text"),
    wrong("matching skills without a text", "POST", "/skills/match", {"text": ""}, "$.text"),
    wrong("matching a number", "POST", "/agents/match", {"text": 7}, "$.text"),
    wrong("matching without a field", "POST", "/skills/match", {}, "$.text"),
    wrong("matching an endless text", "POST", "/skills/match", {"text": "x" * 1_000_001}, "$.text"),
    wrong("matching with a threshold", "POST", "/agents/match", {"text": "x", "threshold": 1}, "$.threshold"),
    wrong("matching in a project of a number", "POST", "/skills/match", {"text": "x", "project_id": 7},
          "$.project_id"),
    wrong("matching a list", "POST", "/agents/match", ["x"], "$"),
    Case("matching skills in nobody's project", "POST", "/skills/match",
         {"text": "x", "project_id": UNKNOWN_ID}, 404),
    Case("matching agents in nobody's project", "POST", "/agents/match",
         {"text": "x", "project_id": UNKNOWN_ID}, 404),
    wrong("matching in a project of a NUL", "POST", "/agents/match", {"text": "x", "project_id": NUL},
          "$.project_id"),
    Case("the use of no agent", "GET", "/agents/999999/stats", None, 404),
    Case("the use of a huge agent", "GET", f"/agents/{HUGE}/stats", None, 404),
    Case("the use of an agent below zero", "GET", "/agents/-1/stats", None, 404),
    Case("the use of an agent in words", "GET", "/agents/own/stats", None, 404),
    Case("enabling no agent", "PATCH", "/agents/999999/enable", {"enabled": True}, 404),
    Case("enabling a huge agent", "PATCH", f"/agents/{HUGE}/enable", {"enabled": True}, 404),
    wrong("enabling in words", "PATCH", "/agents/1/enable", {"enabled": "yes"}, "$.enabled"),
    wrong("enabling by a number", "PATCH", "/agents/1/enable", {"enabled": 1}, "$.enabled"),
    wrong("enabling null", "PATCH", "/agents/1/enable", {"enabled": None}, "$.enabled"),
    wrong("enabling nothing", "PATCH", "/agents/1/enable", {}, "$.enabled"),
    wrong("enabling and more", "PATCH", "/agents/1/enable", {"enabled": True, "routing": "auto"},
          "$.routing"),
    wrong("a message that is routed", "POST", "/messages", CHAT | {"routing": "auto"}, "$.routing"),
    wrong("routing in capitals", "PUT", "/conversations/{conversation}", {"routing": "AUTO"}, "$.routing"),
    wrong("routing of a list", "PUT", "/settings", {"routing": ["auto"]}, "$.routing"),
    wrong("an endless phrase", "POST", "/agents", AGENT | {"trigger_patterns": [{"pattern": "x" * 201}]},
          "$.trigger_patterns[0].pattern"),
    wrong("too many phrases", "POST", "/agents",
          AGENT | {"trigger_patterns": [{"pattern": f"x{number}"} for number in range(51)]},
          "$.trigger_patterns"),
    wrong("a weight that is none", "POST", "/agents",
          AGENT | {"trigger_patterns": [{"pattern": "x", "weight": "heavy"}]},
          "$.trigger_patterns[0].weight"),
    wrong("answering again with too many skills", "POST", "/messages/{message}/regenerate",
          {"skills": ["a", "b", "c", "d", "e", "f"]}, "$.skills"),
    wrong("answering again with an unknown skill", "POST", "/messages/{message}/regenerate",
          {"skills": ["no-such"]}, "$.skills"),
    wrong("fallbacks in words", "POST", "/agents", AGENT | {"fallbacks": "any"}, "$.fallbacks"),
    wrong("a fallback without a model's type", "POST", "/agents",
          AGENT | {"fallbacks": [{"provider_id": 1, "model": 7}]}, "$.fallbacks[0].model"),
    wrong("a fallback with a key", "POST", "/agents",
          AGENT | {"fallbacks": [{"provider_id": 1, "model": "x", "key": "k"}]}, "$.fallbacks[0].key"),
    Case("answering a loop of nothing", "POST", f"/runs/{UNKNOWN_ID}/questions/{UNKNOWN_ID}/answer",
         {"answer": "stop"}, 404),
    wrong("answering a loop with an object", "POST", f"/runs/{UNKNOWN_ID}/questions/{UNKNOWN_ID}/answer",
          {"answer": {"choice": "stop"}}, "$.answer"),
    wrong("compressing with a list", "POST", "/conversations/{conversation}/compress", [], "$"),
    wrong("compressing by a model", "POST", "/conversations/{conversation}/compress", {"model": "x"},
          "$.model"),
    Case("compressing nothing", "POST", f"/conversations/{UNKNOWN_ID}/compress", {}, 404),
    Case("the context of a NUL", "GET", "/conversations/%00/context", None),
    Case("the context of nothing", "GET", f"/conversations/{UNKNOWN_ID}/context", None, 404),
]  # fmt: skip

PROJECTS = [
    wrong("a project without a name", "POST", "/projects", {}, "$.name"),
    wrong("a project of a blank name", "POST", "/projects", {"name": "  "}, "$.name"),
    wrong("a project of an endless name", "POST", "/projects", {"name": "x" * 201}, "$.name"),
    wrong("a project with a NUL", "POST", "/projects", {"name": "a", "description": NUL}, "$.description"),
    wrong("a project of somebody", "POST", "/projects", {"name": "a", "user_id": 1}, "$.user_id"),
    wrong("a project with an endless description", "POST", "/projects",
          {"name": "a", "description": "x" * 10_001}, "$.description"),
    wrong("a project renamed null", "PUT", "/projects/{project}", {"name": None}, "$.name"),
    wrong("a project renamed to a blank", "PUT", "/projects/{project}", {"name": " "}, "$.name"),
    Case("a project that there is not", "GET", f"/projects/{UNKNOWN_ID}", None, 404),
    Case("changing no project", "PUT", f"/projects/{UNKNOWN_ID}", {"name": "x"}, 404),
    Case("deleting no project", "DELETE", f"/projects/{UNKNOWN_ID}", None, 404),
    Case("conversations of no project", "GET", f"/projects/{UNKNOWN_ID}/conversations", None, 404),
    Case("a project with a NUL", "GET", "/projects/%00"),
    Case("a conversation of no project", "POST", "/conversations", {"project_id": UNKNOWN_ID}, 404),
    Case("pinned perhaps", "GET", "/conversations?pinned=perhaps", fields=("pinned",)),
    Case("archived perhaps", "GET", "/conversations?archived=2", fields=("archived",)),
    Case("an endless tag", "GET", "/conversations?tag=" + "x" * 51, fields=("tag",)),
    Case("an endless question", "GET", "/conversations?q=" + "x" * 301, fields=("q",)),
    Case("an endless project", "GET", "/conversations?project_id=" + "x" * 65, fields=("project_id",)),
    Case("an unknown order", "GET", "/conversations?sort=title", fields=("sort",)),
    Case("a tag with a NUL", "GET", "/conversations?tag=%00"),
    Case("a question with a NUL", "GET", "/conversations?q=%00"),
]  # fmt: skip

CHAINS, LISTS = "/tools/compositions", [{"id": "a", "tool": "file_list"}]
CHAIN = {"name": "chain", "description": "d", "members": LISTS}
COMPOSITIONS = [
    wrong("an empty composition", "POST", CHAINS, {}, "$.name", "$.description", "$.members"),
    wrong("a composition without members", "POST", CHAINS, CHAIN | {"members": []}, "$.members"),
    wrong("a composition of six", "POST", CHAINS,
          CHAIN | {"members": [{"id": f"a{n}", "tool": "file_list"} for n in range(6)]}, "$.members"),
    wrong("a composition of a blank name", "POST", CHAINS, CHAIN | {"name": "a b"}, "$.name"),
    wrong("a composition whose names end in line breaks", "POST", CHAINS,
          CHAIN | {"name": "chain\n", "parameters": [{"name": "p\n"}],
                   "members": [{"id": "a\n", "tool": "file_list\n", "fallbacks": [{"tool": "b\n"}]}]},
          "$.name", "$.parameters[0].name", "$.members[0].id", "$.members[0].tool",
          "$.members[0].fallbacks[0].tool"),
    wrong("a composition of an endless name", "POST", CHAINS, CHAIN | {"name": "a" * 65}, "$.name"),
    wrong("a composition with a NUL", "POST", CHAINS, CHAIN | {"description": NUL}, "$.description"),
    wrong("a composition named like a tool", "POST", CHAINS, CHAIN | {"name": "file_read"}, "$.name"),
    wrong("a composition that nobody counted", "POST", CHAINS, CHAIN | {"success_count": 9},
          "$.success_count"),
    wrong("a composition of a tool above the level", "POST", CHAINS,
          CHAIN | {"members": [{"id": "a", "tool": "shell_execute", "arguments": {"command": "ls"}}]},
          "$.members[0].tool"),
    wrong("a composition that asks", "POST", CHAINS,
          CHAIN | {"members": [{"id": "a", "tool": "ask_decision"}]}, "$.members[0].tool"),
    wrong("a composition with an argument of no tool", "POST", CHAINS,
          CHAIN | {"members": [{"id": "a", "tool": "file_list", "arguments": {"x": HUGE, "y\n": 1}}]},
          "$.members[0].arguments.x", "$.members[0].arguments.y?"),
    wrong("a composition that takes from nowhere", "POST", CHAINS,
          CHAIN | {"members": [{"id": "a", "tool": "file_list", "arguments": {"path": {"$from": "b"}}}]},
          "$.members[0].arguments.path"),
    wrong("a composition of no kind", "POST", CHAINS, CHAIN | {"kind": "loop"}, "$.kind"),
    wrong("a composition that takes for ever", "POST", CHAINS, CHAIN | {"timeout_seconds": HUGE},
          "$.timeout_seconds"),
    wrong("a composition that is huge", "POST", CHAINS,
          CHAIN | {"members": [{"id": "a", "tool": "file_list", "arguments": {"path": "x" * 70_000}}]}, "$"),
    raw("a composition nested deeply", b'{"members": ' + b"[" * 5000 + b"]" * 5000 + b"}", path=CHAINS),
    raw("a composition of half a letter", b'{"name": "\\ud800"}', path=CHAINS),
    Case("a composition that there is not", "GET", f"{CHAINS}/{UNKNOWN_ID}", None, 404),
    Case("changing no composition", "PUT", f"{CHAINS}/{UNKNOWN_ID}", CHAIN, 404),
    Case("deleting no composition", "DELETE", f"{CHAINS}/{UNKNOWN_ID}", None, 404),
    Case("a composition whose id has a NUL", "GET", f"{CHAINS}/%00"),
]  # fmt: skip

LINK = {"kind": "conversation", "subject_id": UNKNOWN_ID}
SHARES = [
    wrong("a link to nothing that is known", "POST", "/shares", {**LINK, "kind": "song"}, "$.kind"),
    wrong("a link to no id", "POST", "/shares", {**LINK, "subject_id": ""}, "$.subject_id"),
    wrong("a link to a long id", "POST", "/shares", {**LINK, "subject_id": "x" * 65}, "$.subject_id"),
    wrong("a link for some", "POST", "/shares", {**LINK, "audience": "some"}, "$.audience"),
    wrong("a link with more", "POST", "/shares", {**LINK, "more": 1}, "$.more"),
    wrong("a link that has ended", "POST", "/shares", {**LINK, "ends_at": "2001-01-01T00:00:00Z"},
          "$.ends_at"),
    wrong("a link without end", "POST", "/shares", {**LINK, "ends_at": "9999-12-31T23:59:59Z"}, "$.ends_at"),
    wrong("a link until noon", "POST", "/shares", {**LINK, "ends_at": "2090-01-01T12:00:00"}, "$.ends_at"),
    Case("a link to no conversation", "POST", "/shares", LINK, 404),
    Case("a link to a NUL", "POST", "/shares", {**LINK, "subject_id": NUL}),
    Case("a link to no room", "POST", "/shares", {**LINK, "kind": "room"}, 404),
    Case("a link to no task", "POST", "/shares", {**LINK, "kind": "task"}, 404),
    Case("revoking no link", "DELETE", f"/shares/{UNKNOWN_ID}", None, 404),
    Case("a link that there is not", "GET", "/shared/x", None, 404),
    Case("a link that there is not, signed in", "GET", "/tenant/shared/x", None, 404),
    Case("a link with a NUL", "GET", "/shared/%00"),
    Case("many messages of a link", "GET", "/shared/x?limit=201", fields=("limit",)),
    Case("messages after less than none", "GET", "/shared/x?after=-1", fields=("after",)),
    Case("an image of no link", "GET", "/shared/x/images/1/0", None, 404),
    Case("an image of message zero", "GET", "/shared/x/images/0/0", fields=("number",)),
]  # fmt: skip

ART = "/artifacts"
DECK = {"type": "ppt", "name": "n", "content": "# A"}
ARTIFACTS = [
    wrong("an artifact of an unknown type", "POST", ART, {**DECK, "type": "song"}, "$.type"),
    wrong("an artifact without a name", "POST", ART, {**DECK, "name": ""}, "$.name"),
    wrong("an artifact with a NUL", "POST", ART, {**DECK, "name": NUL}, "$.name"),
    wrong("an artifact of nothing", "POST", ART, {**DECK, "content": " \n"}, "$.content"),
    wrong("an artifact without a source", "POST", ART, {"type": "ppt", "name": "n"}, "$.content"),
    wrong("a deck of files", "POST", ART, {"type": "ppt", "name": "n", "files": []}, "$.files"),
    wrong("a theme that there is not", "POST", ART, {**DECK, "theme": "dark"}, "$.theme"),
    wrong("a language that is none", "POST", ART, {**DECK, "language": "d\n"}, "$.language"),
    wrong("an artifact with more", "POST", ART, {**DECK, "more": 1}, "$.more"),
    wrong("a chart that is a text", "POST", ART, {**DECK, "type": "chart"}, "$.content"),
    wrong("a chart without values", "POST", ART, {**DECK, "type": "chart", "content": "{}"}, "$.content"),
    wrong("a sheet that is a text", "POST", ART, {**DECK, "type": "sheet"}, "$.content"),
    wrong("a chart of lists", "POST", ART, {**DECK, "type": "chart", "content": "[" * 90_000}, "$.content"),
    wrong("a file outside", "POST", ART,
          {"type": "code", "name": "n", "files": [{"path": "../a", "content": ""}]}, "$.files[0].path"),
    Case("an artifact of no conversation", "POST", ART, {**DECK, "conversation_id": UNKNOWN_ID}, 404),
    Case("an artifact with too many pages", "POST", ART, {**DECK, "content": "# A\n\n---\n\n" * 90}, 413),
    Case("an artifact that is too large", "POST", ART, {**DECK, "content": "x" * 600_000}, 413),
    Case("artifacts of an unknown type", "GET", f"{ART}?type=song", fields=("type",)),
    Case("an artifact that there is not", "GET", f"{ART}/{UNKNOWN_ID}", None, 404),
    Case("an artifact with a NUL in its id", "GET", f"{ART}/%00"),
    Case("changing no artifact", "PUT", f"{ART}/{UNKNOWN_ID}", {"name": "n"}, 404),
    Case("the source of no artifact", "GET", f"{ART}/{UNKNOWN_ID}/content", None, 404),
    Case("page zero of an artifact", "GET", f"{ART}/{UNKNOWN_ID}/content?page=0", fields=("page",)),
    Case("a version past all", "GET", f"{ART}/{UNKNOWN_ID}/content?version={HUGE}", fields=("version",)),
    Case("an unknown format", "GET", f"{ART}/{UNKNOWN_ID}/download?format=exe", fields=("format",)),
    Case("a picture of no width", "GET", f"{ART}/{UNKNOWN_ID}/pages/1?width=1", fields=("width",)),
    wrong("restoring no number", "POST", f"{ART}/{UNKNOWN_ID}/restore", {"version": 0}, "$.version"),
    wrong("a page written without instructions", "POST", f"{ART}/{UNKNOWN_ID}/regenerate",
          {"page_index": 1, "instructions": ""}, "$.instructions"),
]  # fmt: skip

CASES = [
    *TWICE,
    *ARTIFACTS,
    *SHARES,
    *AUTH,
    *BRANCHES,
    *PROJECTS,
    *COMPOSITIONS,
    *CONVERSATIONS,
    *FILES,
    *SEARCHES,
    *PAGING,
    *MESSAGES,
    *LONG_WORK,
    *PROVIDERS,
    *TOOLS_RUNS_SETTINGS,
    *BODIES,
    *ROUTES,
]
