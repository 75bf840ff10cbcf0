"""`/ui/`: the files of the built web UI, or a page that says why it is missing."""

import asyncio
import html
from typing import Any

from litestar import Controller, MediaType, Request, Response, get
from litestar.di import NamedDependency

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.request_input import IGNORES_QUERY
from luxx.errors import NotFound, Unavailable
from luxx.web.files import WebFiles


class UiController(Controller):
    path = "/ui"
    opt = {PUBLIC: True, IGNORES_QUERY: True}
    tags = ("service",)

    @get(["/", "/{path:path}"], media_type=MediaType.HTML, include_in_schema=False)
    async def show(
        self, request: Request[Any, Any, Any], web_files: NamedDependency[WebFiles]
    ) -> Response[bytes]:
        """A file of the web UI; its page for every address within it."""
        if problem := await asyncio.to_thread(web_files.problem):
            return _missing_ui(request, problem)
        answer = await asyncio.to_thread(
            web_files.answer,
            request.scope["path"].removeprefix(self.path),
            accepted=request.headers.get("accept-encoding", ""),
            known_etags=request.headers.get("if-none-match", ""),
        )
        if answer is None:
            raise NotFound("the web UI has no such file; load the page again", kind="file_not_found")
        return Response(
            answer.body, status_code=answer.status, media_type=answer.media_type, headers=answer.headers
        )


def _missing_ui(request: Request[Any, Any, Any], problem: str) -> Response[bytes]:
    """503 as a page for browsers. Raises Unavailable for other clients."""
    sentence = f"this server has no web UI: {problem}"
    if "text/html" not in request.headers.get("accept", "").lower():
        raise Unavailable(sentence, kind="ui_not_built")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Luxx</title></head><body>'
        f"<h1>Luxx is running without its web UI</h1><p>{html.escape(problem)}</p>"
        '<p>The API works (<a href="/docs">documentation</a>), and so does the terminal: '
        "<code>luxx chat</code></p></body></html>"
    )
    return Response(page.encode(), status_code=503, media_type=MediaType.HTML)
