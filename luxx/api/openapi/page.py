"""`/openapi.json` and `/docs`: the document of `document.py` as JSON and as an HTML page without scripts."""

import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
from litestar import Controller, Litestar, MediaType, Request, Response, get

from luxx import __version__
from luxx.api.http.authentication import PUBLIC
from luxx.api.http.request_input import IGNORES_QUERY
from luxx.api.openapi.document import JsonObject, build_document

DOCUMENT, PAGE = "luxx_openapi", "luxx_docs"
STYLE = """
:root{color-scheme:light dark;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h2{margin-top:2.5rem;border-bottom:1px solid var(--line)}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
pre{border:1px solid var(--line);border-radius:6px;padding:.5rem .8rem}
td{overflow-wrap:anywhere}
td:first-child{overflow-wrap:normal}
details{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer;overflow-wrap:anywhere}
code,pre{font:13px/1.5 ui-monospace,monospace}
.method{display:inline-block;width:4.5rem;font-weight:700}
.about{opacity:.75}
.open{border:1px solid var(--line);border-radius:4px;padding:0 .3rem;font-size:12px}
table{border-collapse:collapse;width:100%;margin:.4rem 0}
th,td{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-top:1px solid var(--line)}
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_POLICY = f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
PATH_PARAMETER = re.compile(r"\{(\w+)\}")
CODE = re.compile(r"`([^`]+)`")


class DocsController(Controller):
    path = "/"
    opt = {PUBLIC: True, IGNORES_QUERY: True}
    tags = ("service",)

    @get("/openapi.json", media_type=MediaType.JSON)
    async def openapi(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """This API as an OpenAPI 3.1 document."""
        return Response(_cached(request.app, DOCUMENT, _encode_document), media_type=MediaType.JSON)

    @get("/docs", media_type=MediaType.HTML)
    async def page(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """This API as a page for people."""
        page = _cached(request.app, PAGE, _render_page)
        return Response(page, media_type=MediaType.HTML, headers={"content-security-policy": PAGE_POLICY})


def _cached(app: Litestar, name: str, make: Callable[[Litestar], bytes]) -> bytes:
    """Makes the bytes at the first request: the routes are complete by then and do not change.

    These routes are public. All responses share one copy, however many clients do not read theirs.
    """
    if name not in app.state:
        app.state[name] = make(app)
    return cast("bytes", app.state[name])


def _encode_document(app: Litestar) -> bytes:
    return msgspec.json.encode(build_document(app, title="Luxx", version=__version__))


def _render_page(app: Litestar) -> bytes:
    return render(msgspec.json.decode(_cached(app, DOCUMENT, _encode_document))).encode()


def render(document: JsonObject) -> str:
    """The page for an OpenAPI document as `build_document` makes it."""
    title = f"{document['info']['title']} {document['info']['version']}: API"
    tags: list[JsonObject] = document["tags"]
    sections = "".join(_section(tag, document) for tag in tags)
    schema_sections = "".join(
        _schema_section(name, schema) for name, schema in document["components"]["schemas"].items()
    )
    links = "".join(f'<a href="#{_text(tag["name"])}">{_text(tag["name"])}</a>' for tag in tags)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{_text(title)}</h1>"
        "<p>Every response is JSON in one envelope: <code>success</code>, <code>data</code> and "
        "<code>message</code>, or <code>success: false</code>, <code>error</code>, <code>code</code> and "
        "<code>detail</code>. Routes need the header <code>Authorization: Bearer &lt;access_token&gt;</code> "
        'unless they are marked <span class="open">open</span>. '
        "In the examples, <code>$LUXX</code> is the address of this server and <code>$KEY</code> an "
        "API key (<code>luxx key create NAME</code>) or an access token. "
        'Machine-readable: <a href="/openapi.json">/openapi.json</a>.</p>'
        f'<nav>{links}<a href="#schemas">schemas</a></nav>\n{sections}'
        f'<h2 id="schemas">Schemas</h2>{schema_sections}</body></html>\n'
    )


def _section(tag: JsonObject, document: JsonObject) -> str:
    operations = "".join(
        _operation(method, path, operation, document)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation["tags"][0] == tag["name"]
    )
    name = _text(tag["name"])
    return f'<h2 id="{name}">{name}</h2><p class="about">{_text(tag["description"])}</p>{operations}\n'


def _operation(method: str, path: str, operation: JsonObject, document: JsonObject) -> str:
    is_open = ' <span class="open">open</span>' if operation.get("security") == [] else ""
    head = (
        f'<summary><span class="method">{method.upper()}</span> <code>{_text(path)}</code>{is_open} '
        f'<span class="about">{_inline_code(operation["summary"])}</span></summary>'
    )
    parts = [_example(method, path, operation), _description(operation["description"])]
    if operation["parameters"]:
        rows = [_parameter(parameter) for parameter in operation["parameters"]]
        parts.append(_table(["parameter", "in", "type", "about"], rows))
    if "requestBody" in operation:
        for media, body in operation["requestBody"]["content"].items():
            kind = "" if media == "application/json" else f" <code>{_text(media)}</code>,"
            schema = body["schema"]
            parts.append(f"<p>Body:{kind} {_type(schema)}</p>{_fields(_resolved(schema, document))}")
    answers = [_answer(status, answer, document) for status, answer in operation["responses"].items()]
    parts.append(_table(["answer", "type", "about"], answers))
    return f'<details id="{_text(operation["operationId"])}">{head}{"".join(parts)}</details>'


def _example(method: str, path: str, operation: JsonObject) -> str:
    """A call with curl. `$LUXX` is the address of the server, `$KEY` an API key, ids are variables."""
    url = f"$LUXX{PATH_PARAMETER.sub(lambda name: '$' + name[1].upper(), path)}"
    is_stream = "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    options = ["-N"] * is_stream + [f"-X {method.upper()}"] * (method != "get")
    words = [" ".join(["curl", *options, url])]
    if operation.get("security") != []:
        words.append('-H "Authorization: Bearer $KEY"')
    body = operation.get("requestBody", {}).get("content", {})
    if "example" in body.get("application/json", {}):
        text = msgspec.json.encode(body["application/json"]["example"]).decode()
        words += ["-H 'Content-Type: application/json'", f"-d '{text}'"]
    elif "multipart/form-data" in body:
        words.append("-F file=@example.txt")
    separator = " \\\n  "
    return f"<pre>{_text(separator.join(words))}</pre>"


def _parameter(parameter: JsonObject) -> list[str]:
    required_note = " (required)" if parameter["required"] else ""
    about = _inline_code(parameter.get("description", "")) + required_note
    return [f"<code>{_text(parameter['name'])}</code>", parameter["in"], _type(parameter["schema"]), about]


def _answer(status: str, answer: JsonObject, document: JsonObject) -> list[str]:
    response = _resolved(answer, document)
    types = [
        (_type(body["schema"]) if media == "application/json" else f"<code>{_text(media)}</code>")
        for media, body in response.get("content", {}).items()
    ]
    return [f"<code>{_text(status)}</code>", " or ".join(types), _inline_code(response["description"])]


def _schema_section(name: str, schema: JsonObject) -> str:
    about = _description(schema.get("description", ""))
    body = _fields(schema) or f"<p>{_type({key: schema[key] for key in schema if key != 'title'})}</p>"
    head = f"<summary><code>{_text(name)}</code></summary>"
    return f'<details id="schema-{_text(name)}">{head}{about}{body}</details>'


def _fields(schema: JsonObject) -> str:
    required: list[str] = schema.get("required", [])
    rows = [
        [
            f"<code>{_text(name)}</code>{'' if name in required else ' (optional)'}",
            _type(field),
            _inline_code(field.get("description", "")),
        ]
        for name, field in schema.get("properties", {}).items()
    ]
    return _table(["field", "type", "about"], rows) if rows else ""


def _type(schema: JsonObject) -> str:
    """A short text for a schema, with links to the named schemas."""
    if "$ref" in schema:
        name = _text(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(
            f"<code>{_text(msgspec.json.encode(value).decode())}</code>" for value in schema["enum"]
        )
    if "prefixItems" in schema:
        return f"[{', '.join(_type(item) for item in schema['prefixItems'])}]"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema)}"
    label = str(schema.get("format") or schema.get("type") or "anything")
    return _text(label) + _bounds(schema)


def _bounds(schema: JsonObject) -> str:
    names = {
        "minimum": "≥ {}",
        "maximum": "≤ {}",
        "minLength": "at least {} long",
        "maxLength": "at most {} long",
        "maxItems": "at most {}",
        "pattern": "like {}",
        "default": "default {}",
    }
    constraints = [label.format(_code(schema[key])) for key, label in names.items() if key in schema]
    return f' <span class="about">({", ".join(constraints)})</span>' if constraints else ""


def _code(value: Any) -> str:
    return f"<code>{_text(value if isinstance(value, str) else msgspec.json.encode(value).decode())}</code>"


def _resolved(schema: JsonObject, document: JsonObject) -> JsonObject:
    """The target of a reference, or the schema itself."""
    if "$ref" not in schema:
        return schema
    node: Any = document
    for key in str(schema["$ref"]).removeprefix("#/").split("/"):
        node = node[key]
    return cast("JsonObject", node)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """An HTML table. The cells are HTML, so it does not escape them."""
    head = "".join(f"<th>{name}</th>" for name in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _description(text: str) -> str:
    """Converts paragraphs, and blocks of lines that begin with `|` to tables."""
    blocks: list[str] = []
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            cells = [[_inline_code(cell.strip()) for cell in line.strip("|").split(" | ")] for line in lines]
            blocks.append(_table(cells[0], cells[2:]))
        elif lines:
            blocks.append(f"<p>{_inline_code(block)}</p>")
    return "".join(blocks)


def _inline_code(text: str) -> str:
    return CODE.sub(r"<code>\1</code>", _text(text))


def _text(text: str) -> str:
    return html.escape(text)
