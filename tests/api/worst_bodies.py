"""For every route that takes a body: the largest body that its schema allows, and bodies that are costly to
read or to work on. `test_event_loop.py` sends them."""

import base64
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from api.owned_ids import NO_UUID, IdsByName
from api.schema import Document, Operation
from luxx.api.openapi.types import EXAMPLES

JSON = "application/json"
YAML = "application/yaml"
MULTIPART = "multipart/form-data"
FORM = "application/x-www-form-urlencoded"

MAX_BODY = 10 * 2**20
MARKS = "\u0f71\u0f72"
"""Two combining marks in the wrong order: a run of them takes quadratic time to sort."""

Content = bytes | dict[str, Any] | list[Any]


class Body(msgspec.Struct, frozen=True):
    """`make` gets the ids that exist. `path` replaces the path of the route."""

    name: str
    make: Callable[[IdsByName], Content]
    path: str = ""
    media_type: str = JSON

    def encoded(self, ids: IdsByName) -> bytes:
        content = self.make(ids)
        return content if isinstance(content, bytes) else json.dumps(content).encode()


def marks(size: int) -> str:
    return MARKS * (size // 2)


def nested(depth: int) -> dict[str, Any]:
    """A stop of a room with 10 ** (depth + 1) phrases."""
    return {"any": [nested(depth - 1) if depth else {"phrase": "z" * 200} for _ in range(10)]}


def largest(document: Document, operation: Operation) -> Body:
    """All fields of the schema, each as large as it may be."""
    schema = document.body_schema(operation)
    assert schema is not None
    for limit in (1_000_000, 100_000, 10_000, 1_000):
        body = _filled(document, schema, limit, 0)
        if len(json.dumps(body, ensure_ascii=False).encode()) < MAX_BODY:
            break
    encoded = json.dumps(body, ensure_ascii=False).encode()
    return Body("largest", lambda _ids: encoded)


def _filled(document: Document, schema: dict[str, Any], limit: int, depth: int) -> Any:
    schema = document.resolve(schema)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        kinds = ["array", "object", "string"]
        given = [kind for one in options if (kind := document.resolve(one).get("type")) in kinds]
        best = min(given, key=kinds.index, default=None)
        chosen = next((one for one in options if document.resolve(one).get("type") == best), options[0])
        return _filled(document, chosen, limit, depth)
    if "enum" in schema or "const" in schema:
        return schema.get("const", next(iter(schema.get("enum", [None]))))
    match schema.get("type"):
        case "string":
            return _text(schema, limit)
        case "array" if depth < 5:
            size = min(schema.get("maxItems", 1_000), 200, limit)
            return [_filled(document, schema.get("items", {}), limit // max(size, 1), depth + 1)] * size
        case "object" if "properties" in schema and depth < 6:
            parts = schema["properties"].items()
            return {name: _filled(document, part, limit, depth + 1) for name, part in parts}
        case "object" if depth < 6:
            return {f"k{number}": "v" for number in range(1_000)}
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return None


def _text(schema: dict[str, Any], limit: int) -> str:
    size = max(min(schema.get("maxLength", limit), limit), schema.get("minLength", 0))
    pattern = re.compile(schema.get("pattern", ""))
    texts = (marks(size), "a" * size, "0" * size, "#0f8a6d", NO_UUID, "a@b.example")
    return next((text for text in texts if pattern.search(text)), "a")


def ignored(number: int = 99_990) -> bytes:
    """Many values of a field that no route knows."""
    return b'{"zzz":[' + b",".join([b"[]"] * (number // 2)) + b"]}"


TOO_MANY_VALUES = b'{"zzz":[' + b",".join([b"[]"] * (MAX_BODY // 3 - 10)) + b"]}"
LONG_NUMBERS = b'{"zzz":[' + b",".join([b"9" * 4_000] * (MAX_BODY // 4_001 - 1)) + b"]}"
QUOTED_COLONS = b'{"zzz":"' + b'\\":' * (MAX_BODY // 3 - 10) + b'"}'
DECIMALS = b'{"zzz":[' + b",".join([b"1.234567890123456789e-300"] * 99_000) + b"]}"

EVERYWHERE = [
    Body("ignored values", lambda _: ignored()),
    Body("too many values", lambda _: TOO_MANY_VALUES),
    Body("long numbers", lambda _: LONG_NUMBERS),
    Body("quoted colons", lambda _: QUOTED_COLONS),
    Body("decimals", lambda _: DECIMALS),
]
"""Sent to one route of each reader of bodies; the others have the same reader."""

TEXTS = {
    "marks": marks(990_000),
    "mentions": "@" * 990_000,
    "unspaced": "中文" * 490_000,
    "letters": "ß.İ" * 330_000,
}


def messages() -> list[Body]:
    def body(text: str) -> Body:
        return Body("", lambda ids: {"conversation_id": ids["conversation_id"], "content": text})

    texts = [msgspec.structs.replace(body(text), name=name) for name, text in TEXTS.items()]
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}}
    format_ = {"type": "json_schema", "schema": schema}
    sent = {"content": "x", "response_format": format_}
    return [*texts, Body("schema", lambda ids: {"conversation_id": ids["conversation_id"], **sent})]


def comparisons() -> list[Body]:
    other = {"provider_id": 1, "model": "other"}
    return [
        Body(name, lambda _ids, text=text: {"content": text, "compare_with": other})
        for name, text in TEXTS.items()
    ]


def documents(size: int, head: str) -> list[Body]:
    """YAML that takes long to parse, and JSON in its place."""
    texts = {
        "seats": head + "agents:\n" + f"- name: a\n  system_prompt: {'x' * (size // 20)}\n" * 18,
        "lists": head + "a:\n" + "- [1,2,3,4,5,6,7,8]\n" * (size // 20 - 10),
        "small lists": head + "a: [" + "[]," * 9_000 + "]",
        "lines": 'a: "' + "b\n\n  " * (size // 6 - 10) + '"',
        "brackets": "[" * size,
        "base 60": "a: " + "1:" * (size // 2 - 10) + "1",
        "number": "a: " + "9" * (size - 10),
        "keys": "\n".join(f"k{number}: 1" for number in range(9_900)),
        "half characters": 'a: "\\ud83d"\nb: [' + "1," * 9_000 + "]",
        "JSON": '{"a":[' + ",".join(["[]"] * (size // 3 - 10)) + "]}",
    }
    return [
        Body(name, lambda _ids, text=text: text.encode(), media_type=YAML) for name, text in texts.items()
    ]


STEPS = [
    {
        "id": f"s{number}",
        "name": f"step {number}",
        "goal": marks(10_000),
        "depends_on": [f"s{before}" for before in range(max(0, number - 10), number)],
    }
    for number in range(200)
]


def tool(name: str, what: str, **arguments: Any) -> Body:
    return Body(f"{name} {what}", lambda _ids: {"arguments": arguments}, path=f"/tools/{name}/execute")


def data(operation: str, text: str, **options: Any) -> Body:
    return tool("process_data", operation, data=text, operation=operation, options=options)


def _list(item: str) -> str:
    return "[" + ",".join([item] * (9_800_000 // (len(item) + 1))) + "]"


def tools() -> Iterable[Body]:
    yield data("parse", _list("[]"))
    yield data("minify", _list("1.234567890123456789e-300"))
    yield data("sort", "[" + ",".join(str(number * 7919 % 99_991) for number in range(99_000)) + "]")
    yield data("keys", "[" + ",".join(f'{{"k{number}":1}}' for number in range(49_000)) + "]")
    yield data("group", _list("1"), by="")
    yield data("csv_to_json", "a," * 4_800_000)
    yield data("filter", json.dumps(["a" * 90_000] * 100), test="matches", value="(a|b|ab)*c(a|b|ab)*d")
    yield tool("process_data", "unknown", **{f"k{number}": number for number in range(99_000)})
    yield tool("file_write", "marks", path="marks.txt", content=marks(1_000_000))
    yield tool("file_edit", "long", path="marks.txt", old_string=" \n" * 200_000 + "x", new_string="y")
    yield tool("file_grep", "pattern", pattern="(a|b| )*x" + "(a|ab)*" * 100)
    yield tool("file_glob", "stars", pattern="**/" * 60 + "*a*a*a")
    yield tool("file_list", "path", path="../" * 3_000_000)
    yield tool("python_eval", "power", expression="sum(x**2 for x in range(10**9))")
    yield tool("shell_execute", "brackets", command="echo " + '"$(echo ' * 3_000)
    yield tool("shell_execute", "escapes", command="echo " + "\\a" * 14_000)
    yield tool("batch_fetch", "escapes", urls=["http://127.0.0.1/" + "%41/../" * 580] * 10)


def call(number: int) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}


CALLS = [call(number) for number in range(9_998)]
RESULTS = [{"role": "tool", "tool_call_id": f"c{number}", "content": "r"} for number in range(9_998)]
QUESTION = {"role": "user", "content": "x"}
IMAGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(3_500_000)).decode()
MODELS = ("scripted", "anthropic", "gemini", "responses")
"""The names of providers of all dialects, each with the model `scripted`."""


def chats() -> Iterable[Body]:
    def body(name: str, given: list[Any], model: str = "any/any", **more: Any) -> Body:
        return Body(name, lambda _ids: {"model": model, "messages": given, **more})

    pairs = [part for number in range(4_999) for part in (
        {"role": "assistant", "tool_calls": [CALLS[number]]}, RESULTS[number],
    )]  # fmt: skip
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(90)}}
    functions = [
        {"type": "function", "function": {"name": f"t{number}", "parameters": schema}}
        for number in range(200)
    ]
    yield body("a missing result", [QUESTION, {"role": "assistant", "tool_calls": CALLS}, *RESULTS[:-1]])
    yield body("ignored values", [QUESTION], prediction=[[]] * 49_000)
    for provider in MODELS:
        model = f"{provider}/scripted"
        answer = {"role": "assistant", "tool_calls": CALLS[:-1]}
        yield body(f"calls of {provider}", [QUESTION, answer, *RESULTS[:-1]], model)
        yield body(f"answers of {provider}", [QUESTION, *pairs], model)
        yield body(f"tools of {provider}", [QUESTION], model, tools=functions)
        images = [{"type": "image_url", "image_url": {"url": IMAGE}}] * 2
        yield body(f"images of {provider}", [{"role": "user", "content": images}], model)
    yield Body("a room", lambda ids: {
        "model": f"room/{ids['room_id']}",
        "messages": [{"role": "assistant", "content": "**a:**" + " " * 990_000}, QUESTION],
    })  # fmt: skip
    yield body(
        "the demo",
        [{"role": "system", "content": "open day of the observatory " * 300_000}, QUESTION],
        "Demo (scripted answers)/demo",
    )


def responses() -> Iterable[Body]:
    calls = [
        {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        for number in range(4_999)
    ]
    outputs = [{"type": "function_call_output", "call_id": one["call_id"], "output": "x"} for one in calls]
    for name, model, items in (
        ("a missing output", "any/any", outputs[:-1]),
        ("chat", "scripted/scripted", outputs),
        ("responses", "responses/scripted", outputs),
    ):
        sent = [QUESTION, *calls, *items]
        yield Body(name, lambda _ids, model=model, sent=sent: {"model": model, "input": sent})


def parts(name: bytes, content: bytes, count: int = 1) -> bytes:
    head = b'--x\r\ncontent-disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n'
    return (head + content + b"\r\n") * count + b"--x--\r\n"


def exported() -> list[dict[str, Any]]:
    """A conversation of 10,000 messages, as ChatGPT exports it."""
    nodes = {
        f"n{number}": {
            "id": f"n{number}",
            "parent": f"n{number - 1}" if number else None,
            "children": [f"n{number + 1}"],
            "message": {
                "id": f"n{number}",
                "author": {"role": "user" if number % 2 else "assistant"},
                "content": {"content_type": "text", "parts": ["hello world " * 20]},
            },
        }
        for number in range(3_000)
    }
    return [{"title": "t", "create_time": 1.0, "current_node": "n2999", "mapping": nodes}]


def imports() -> Iterable[Body]:
    yield Body("long", lambda _: exported())
    yield Body("lists", lambda _: b"[" + b",".join([b"[]"] * 1_000_000) + b"]")
    yield Body("number", lambda _: b'[{"mapping":{},"create_time":' + b"1" * 2_000_000 + b"}]")
    yield Body("brackets", lambda _: b"[" * 1_000_000)
    yield Body("zip", lambda _: b"PK\x03\x04" * 2_000_000, media_type="application/zip")
    yield Body("form", lambda _: parts(b"a.json", b"[" * 1_000_000), media_type=f"{MULTIPART}; boundary=x")


def texts_of_rooms() -> list[Body]:
    return [Body(name, lambda _ids, text=text: {"content": text}) for name, text in TEXTS.items()]


RULES = [{"tool": "shell_execute", "pattern": "*a" * 100, "action": "allow"} for _ in range(500)]
PROMPTS = [
    "{{ " * 16_000,
    "{{a:" * 12_000,
    "{{" + "\t" * 49_000,
    "".join(f"{{{{v{n}}}}}" for n in range(5_000)),
]


def skill_texts() -> dict[str, bytes]:
    """Front matter of the most characters that is slow to parse, and texts of the largest size."""
    fronts = {
        "deep": "x: " + "[" * 8_000,
        "keys": "".join(f"k{n}: 1\n" for n in range(900)),
        "blocks": "".join(" " * n + "- \n" for n in range(100)),
        "marks": f"triggers: ['{marks(190)}']",
        "entries": "allowed-tools: " + " ".join(f"*{n}?*a*(b*c*{n})" for n in range(100)),
    }
    head = "---\nname: worst\ndescription: d\n{}\n---\n\nx".format
    texts = {name: head(front).encode() for name, front in fronts.items()}
    return {**texts, "text": (head("a: b") + marks(13_000)).encode(), "lines": b"---\n" * 9_000}


def skill_uploads() -> Iterator[Body]:
    """Forms with each of these texts, and with archives of many bytes or entries."""
    files: dict[str, Callable[[], bytes]] = {
        name: lambda text=text: text for name, text in skill_texts().items()
    }
    files["zeros"] = lambda: archive_of({"zeros": bytes(100_000_000)})
    files["entries"] = lambda: archive_of({f"{n}/": b"" for n in range(60_000)})
    scope = b'--x\r\ncontent-disposition: form-data; name="scope"\r\n\r\ntenant\r\n'
    for name, make in files.items():
        form = f"{MULTIPART}; boundary=x"
        yield Body(name, lambda _ids, make=make: scope + parts(b"a", make()), media_type=form)


def archive_of(entries: dict[str, bytes]) -> bytes:
    """A ZIP file of a skill with these entries."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in {"SKILL.md": skill_texts()["text"], **entries}.items():
            archive.writestr(path, content)
    return packed.getvalue()


PATTERN_STEPS = [{"description": marks(400), "tools": ["t" * 200]} for _ in range(20)]
WORST_GOALS = {
    "words": "sales chart report " * 1_000,
    "marks": "chart " + marks(9_000),
    "one token": "a1" * 10_000,
    "separators": "a@.-_/" * 3_300,
    "Chinese": "报告图表销售" * 3_300,
    "digits": "4111 " * 4_000,
}
SEATS = [{"name": f"a{n}", "system_prompt": marks(50_000), "tools": ["t" * 200] * 200} for n in range(20)]
ROOM = {"title": "t", "task": marks(100_000)}
TASK = {"name": "t", "goal": marks(10_000), "metadata": {f"k{n}": n for n in range(50_000)}}
MEMBERS = [
    {"id": f"m{n}", "tool": "process_data", "arguments": {"data": "{{a.b}}" * 2_000}} for n in range(5)
]

SOURCES = {
    "lists": "- x\n" * 120_000,
    "nested lists": "".join("  " * depth + "- x\n" for depth in range(680)),
    "cells": "|a|b|\n|-|-|\n" + "|c|d|\n" * 80_000,
    "emphasis": "**a*b_c" * 68_000,
    "open emphasis": "*a **b " * 68_000,
    "brackets": "[" * 480_000,
    "links": "[a](http://b) " * 34_000,
    "comments": "<!-- " * 95_000,
    "line ends": "\r\u2028\x85" * 80_000,
}
"""Sources of documents that renderers take long for."""


def artifact_sources() -> list[Body]:
    def body(name: str, type_: str, content: str) -> Body:
        return Body(f"{type_} {name}", lambda _ids: {"type": type_, "name": "n", "content": content})

    sheet = {
        "sheets": [{"name": "s", "columns": [{"name": "c", "type": "formula"}], "rows": [["=1+1"]] * 40_000}]
    }
    files = {"files": [{"path": f"{'a/' * 8}{number}", "content": "x"} for number in range(999)]}
    return [
        *(body(name, "document", f"# A\n\n{text}") for name, text in SOURCES.items()),
        body("separators", "ppt", "---\n" * 120_000),
        body("fences", "ppt", "```\n# a\n" * 50_000),
        body("formulas", "sheet", json.dumps(sheet)),
        body("files", "code", json.dumps(files)),
        body("brackets", "chart", "[" * 480_000),
        body("nodes", "diagram", "a-->b\n" * 80_000),
    ]


WORST_PARAMETERS = (
    "9" * 4_000,
    "%00" * 1_000,
    "a" * 10_000,
    "%F0%9F%98%80" * 1_000,
    "%22" * 3_000,
    "-1",
    "2147483647",
)
"""Values for every parameter of a path, a query or a header; the last ones are numbers that some accept."""

SEARCHES = ("%e0%bd%b1%e0%bd%b2" * 500, "a%20" * 2_000, "%22a%22%20-" * 700, "a*" * 3_000, "(" * 5_000)
"""Texts to search for."""

WORST: dict[str, Callable[[], list[Body]]] = {
    "POST /agents/import": lambda: documents(190_000, "version: 1\nname: a\n"),
    "POST /agents/{agent_id}/invoke": texts_of_rooms,
    "POST /artifacts": artifact_sources,
    "POST /chat-rooms": lambda: [
        Body("nested stop", lambda _: {**ROOM, "stop": nested(2)}),
        Body("deep stop", lambda _: {**ROOM, "stop": nested(3)}),
        Body("seats", lambda _: {**ROOM, "agents": SEATS}),
    ],
    "POST /chat-rooms/import": lambda: documents(960_000, "version: 1\ntitle: t\ntask: t\n"),
    "PUT /chat-rooms/{room_id}": lambda: [Body("nested stop", lambda _: {"stop": nested(2)})],
    "POST /chat-rooms/{room_id}/messages": texts_of_rooms,
    "POST /conversations": lambda: EVERYWHERE,
    "POST /conversations/{conversation_id}/comparison": comparisons,
    "POST /conversations/import": lambda: [*imports()],
    "POST /files": lambda: [
        Body(name, lambda _ids, sent=sent: sent, media_type=f"{MULTIPART}; boundary=x")
        for name, sent in {
            "many": parts(b"a.txt", b"x", 5_000),
            "name": parts(MARKS.encode() * 2_000, b"x"),
            "boundaries": parts(b"a.txt", b"\r\n--" * 5_000_000),
            "returns": parts(b"a.txt", b"\r" * 20_000_000),
            "heads": b"--x\r\n" + b"a: b\r\n" * 3_000_000,
        }.items()
    ],
    "POST /messages": messages,
    "POST /messages/stream": messages,
    "PUT /messages/{message_id}": texts_of_rooms,
    "PUT /permissions/rules": lambda: [Body("stars", lambda _: RULES)],  # type: ignore[list-item]
    "POST /patterns": lambda: [
        Body(name, lambda _ids, goal=goal: {"name": "p", "goal": goal, "steps": PATTERN_STEPS})
        for name, goal in WORST_GOALS.items()
    ],
    "POST /patterns/match": lambda: [
        Body(name, lambda _ids, goal=goal: {"text": goal}) for name, goal in WORST_GOALS.items()
    ],
    "POST /prompts": lambda: [
        Body(f"braces {n}", lambda _ids, n=n, text=text: {"name": f"p{n}", "content": text})
        for n, text in enumerate(PROMPTS)
    ],
    "POST /runs/{run_id}/questions/{question_id}/answer": lambda: [
        Body("arguments", lambda _: {"answer": "once", "arguments": {f"k{n}": n for n in range(99_000)}})
    ],
    "POST /setup": lambda: [
        Body("fields", lambda _: b"&".join(b"a%d=1" % n for n in range(8_000)), media_type=FORM)
    ],
    "POST /skills/upload": lambda: [*skill_uploads()],
    "PUT /skills/{skill_id}/content": lambda: [
        Body(name, lambda _ids, sent=sent: sent, media_type="text/markdown")
        for name, sent in skill_texts().items()
    ],
    "POST /task-templates": lambda: [
        Body("steps", lambda _: {"name": "t", "document": {**TASK, "version": 1, "steps": STEPS}})
    ],
    "POST /tasks": lambda: [
        Body("steps", lambda _: {**TASK, "metadata": {}, "steps": STEPS}),
        Body("metadata", lambda _: TASK),
    ],
    "POST /tasks/import": lambda: [
        *documents(490_000, "version: 1\nname: t\ngoal: g\n"),
        Body("steps", lambda _: {**TASK, "version": 1, "steps": STEPS}),
    ],
    "PUT /tasks/{task_id}": lambda: [Body("metadata", lambda _: TASK)],
    "PUT /tasks/{task_id}/graph": lambda: [Body("steps", lambda _: {"steps": STEPS})],
    "POST /tasks/{task_id}/steps": lambda: [Body("steps", lambda _: {"steps": STEPS})],
    "POST /tools/compositions": lambda: [
        Body("members", lambda _: {"name": "worst", "description": "d", "members": MEMBERS})
    ],
    "POST /tools/{name}/execute": lambda: [*tools()],
    "POST /v1/chat/completions": lambda: [*chats()],
    "POST /v1/responses": lambda: [*responses()],
}
"""By route: what makes the bodies that are sent besides the largest one of its schema, when they are sent:
together they have hundreds of megabytes."""

ROUTES = sorted({*EXAMPLES, *WORST})
"""The routes that take a body."""
