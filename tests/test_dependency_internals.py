"""The parts of dependencies that Luxx uses and that their documentation does not promise.

Each test fails when a new version of the dependency changes such a part, before anything else does. Luxx uses
them in `luxx/api/http/protocol.py` (uvicorn), `luxx/providers/transport.py` (httpx-aiohttp), `luxx/infra/
children.py` (asyncio), `luxx/infra/store/engine.py` (SQLAlchemy) and in `luxx/infra/documents/render/` (the
XML elements of python-docx and python-pptx, and adding an object with pypdf). It uses no other private part.
"""

import ast
import asyncio
import inspect
import re
import sys
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import docx
import pptx
import pytest
import uvicorn
from httpx_aiohttp.transport import AiohttpResponseStream
from litestar import Litestar, get
from litestar.params import QueryParameter
from lxml import etree
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.opc.constants import RELATIONSHIP_TYPE as RT
from pypdf import PdfWriter
from pypdf.generic import DictionaryObject
from sqlalchemy import create_engine
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

ROOT = Path(__file__).parent.parent
DOCUMENTED = {"_exit", "_replace"}
"""Of `os` and of named tuples."""


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An application that does nothing."""


async def test_uvicorn_has_the_http_protocol_that_ours_extends() -> None:
    config = uvicorn.Config(cast("Any", app), log_config=None)
    protocol = HttpToolsProtocol(config, ServerState(), {}, _loop=asyncio.get_running_loop())
    assert {
        "client", "connections", "cycle", "flow", "headers", "logger", "loop", "parser", "pipeline", "scope",
        "transport",
    } <= vars(protocol).keys()  # fmt: skip
    assert len(protocol.pipeline) == 0
    expected = {
        "connection_made": ["transport"], "connection_lost": ["exc"], "data_received": ["data"],
        "handle_websocket_upgrade": [], "on_body": ["body"], "on_header": ["name", "value"],
        "on_headers_complete": [], "on_message_begin": [], "on_message_complete": [],
        "send_400_response": ["msg"], "_start_asgi_task": ["cycle", "app"],
    }  # fmt: skip
    for name, names in expected.items():
        assert parameters(getattr(HttpToolsProtocol, name)) == ["self", *names], name


def test_uvicorn_has_the_state_of_a_request_that_our_protocol_changes() -> None:
    source = inspect.getsource(RequestResponseCycle.__init__)
    for name in ("disconnected", "keep_alive", "message_event", "response_complete", "response_started"):
        assert f"self.{name} = " in source, name
    assert "self.waiting_for_100_continue = expect_100_continue" in source
    # `_LingeringTransport` replaces it, and has what a request uses of it.
    assert "self.transport = transport" in source
    used = set(re.findall(r"self\.transport\.(\w+)", inspect.getsource(RequestResponseCycle)))
    assert used == {"close", "is_closing", "write"}
    assert parameters(FlowControl.__init__) == ["self", "transport"]
    assert {"read_paused", "write_paused"} <= vars(FlowControl(cast("Any", None))).keys()
    assert parameters(FlowControl.resume_reading) == ["self"]


async def test_uvicorn_has_the_socket_protocol_that_ours_extends() -> None:
    config = uvicorn.Config(cast("Any", app), log_config=None, ws_per_message_deflate=False)
    protocol = WebSocketsSansIOProtocol(config, ServerState(), {}, _loop=asyncio.get_running_loop())
    assert {
        "close_sent", "conn", "frames", "handshake_complete", "initial_response", "logger", "loop", "queue",
        "read_paused", "transport", "writable",
    } <= vars(protocol).keys()  # fmt: skip
    assert protocol.conn.close_rcvd is None
    expected = {
        "connection_lost": ["exc"], "data_received": ["data"], "handle_cont": ["event"],
        "handle_parser_exception": [], "pause_writing": [], "receive": [], "resume_writing": [],
        "run_asgi": [], "send": ["message"],
    }  # fmt: skip
    for name, names in expected.items():
        assert parameters(getattr(WebSocketsSansIOProtocol, name)) == ["self", *names], name


async def test_uvicorn_asks_its_server_on_each_tick_and_at_each_signal() -> None:
    server = uvicorn.Server(uvicorn.Config(cast("Any", app), log_config=None))
    assert parameters(server.on_tick) == ["counter"]
    # A library of MCP servers, which other tests run in this process, puts its own in place.
    status: Any = getattr(sys.modules.get("sse_starlette.sse"), "AppStatus", None)
    handle_exit = uvicorn.Server.handle_exit if status is None else status.original_handler
    assert parameters(handle_exit) == ["self", "sig", "frame"]
    assert (server.should_exit, server.force_exit, server.started) == (False, False, False)
    assert server.server_state.connections == set()


def test_the_body_of_httpx_aiohttp_keeps_the_response_of_aiohttp() -> None:
    response = cast("Any", object())
    assert cast("Any", AiohttpResponseStream(response))._aiohttp_response is response


def test_asyncio_makes_a_process_of_a_transport_and_a_protocol() -> None:
    assert parameters(Process.__init__) == ["self", "transport", "protocol", "loop"]
    assert parameters(SubprocessStreamProtocol.__init__) == ["self", "limit", "loop"]


def test_a_dialect_of_sqlalchemy_has_the_methods_that_the_store_replaces() -> None:
    dialect = create_engine("sqlite://").dialect
    assert parameters(dialect.do_begin) == ["dbapi_connection"]
    for name in ("do_savepoint", "do_release_savepoint", "do_rollback_to_savepoint"):
        assert parameters(getattr(dialect, name)) == ["connection", "name"]
    assert dialect.use_insertmanyvalues_wo_returning in (True, False)


def test_litestar_has_the_handler_and_the_signatures_that_luxx_reads() -> None:
    @get("/", sync_to_thread=False)
    def handler(number: Annotated[int, QueryParameter()] = 1) -> None: ...

    app = Litestar([handler], openapi_config=None, logging_config=None)
    assert callable(app.asgi_handler)
    (route,) = app.routes
    (get_handler,) = (handler for handler in route.route_handlers if "GET" in handler.http_methods)
    field = get_handler.parsed_fn_signature.parameters["number"]
    assert (field.annotation, field.default, field.has_default) == (int, 1, True)


OF_RENDERERS = {
    "checks.py": {"_chartSpace"},
    "deck/presentation.py": {"_blob", "_spTree"},
    "deck/shapes.py": {"_p", "_r", "_tc"},
    "document.py": {"_p", "_r", "_tbl", "_tc", "_tr"},
    "document_styles.py": {"_r"},
    "paging.py": {"_add_object"},
}
"""The elements behind the objects of these libraries, which their guides name for what has no function."""


def test_office_libraries_have_the_elements_that_the_renderers_change() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("text")
    table = document.add_table(1, 1)
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    frame = slide.shapes.add_table(1, 1, 0, 0, 10, 10)
    data = CategoryChartData()
    data.categories = ["a"]
    data.add_series("s", [1])
    chart = slide.shapes.add_chart(XL_CHART_TYPE.PIE, 0, 0, 10, 10, data).chart
    cell = frame.table.cell(0, 0)
    elements = {
        "p": [paragraph._p, cell.text_frame.paragraphs[0]._p],
        "r": [paragraph.runs[0]._r, cell.text_frame.paragraphs[0].add_run()._r],
        "tbl": [table._tbl],
        "tr": [table.rows[0]._tr],
        "tc": [table.cell(0, 0)._tc, cell._tc],
        "spTree": [slide.shapes._spTree],
        "chartSpace": [chart._chartSpace],
    }
    for name, found in elements.items():
        assert {etree.QName(element).localname for element in found} == {name}
    assert isinstance(slide.part.package.presentation_part.part_related_by(RT.THEME)._blob, bytes)
    assert PdfWriter()._add_object(DictionaryObject()).idnum > 0


def own_names(trees: list[ast.Module]) -> Iterator[str]:
    """The functions and attributes that Luxx defines."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def used_names(tree: ast.Module) -> Iterator[str]:
    """The names of attributes, and the parts of imported names."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                yield name
            case ast.ImportFrom(module=str(module), names=aliases):
                yield from (*module.split("."), *(alias.name for alias in aliases))
            case _:
                pass


@pytest.mark.heavy
def test_luxx_uses_no_other_private_part() -> None:
    trees = {
        str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in (ROOT / "luxx").rglob("*.py")
    }
    public = {*own_names(list(trees.values())), *DOCUMENTED}
    undocumented: dict[str, set[str]] = {}
    for path, tree in trees.items():
        private = {name for name in used_names(tree) if name.startswith("_") and not name.startswith("__")}
        if private - public:
            undocumented[path] = private - public
    expected = {"luxx/providers/transport.py": {"_aiohttp_response"}}
    expected |= {f"luxx/infra/documents/render/{name}": parts for name, parts in OF_RENDERERS.items()}
    assert undocumented == expected
