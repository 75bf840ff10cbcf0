"""The built web UI as HTTP answers at `/ui/`: which file a path means, its headers, its compressed forms.

It reads each file once: all answers share its bytes, however many clients do not read theirs.
"""

import asyncio
import hashlib
import html
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from litestar import Controller, MediaType, Request, Response, get
from litestar.di import NamedDependency

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.request_input import IGNORES_QUERY
from luxx.errors import NotFound, Unavailable
from luxx.web.build import DIST, MANIFEST_NAME, PRELOADED_NAME, REPORT_NAME, WEB, has_sources

MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}
ENCODINGS = {"br": ".br", "gzip": ".gz"}
"""By preference; the build writes a compressed form beside each text."""

PAGE = "index.html"
FIRST_AREA = "chat"
"""Where the address of the UI itself leads."""

DIAGRAM_PAGE = "diagram.html"
ARTIFACT_PAGE = "artifact.html"
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATED = "no-cache"
DIAGRAM_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
"""The page that draws diagrams in a frame: the library that it uses writes style elements. It has no origin,
so that its scripts reach neither the page around it nor what the browser stores for this server."""

ARTIFACT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; connect-src 'none'; form-action 'none'; frame-src 'none'; "
    "worker-src 'none'; base-uri 'none'; frame-ancestors 'self'"
)
"""The page that shows a web artifact in a frame: what it shows has neither network nor origin."""

PAGE_POLICIES = {DIAGRAM_PAGE: DIAGRAM_POLICY, ARTIFACT_PAGE: ARTIFACT_POLICY}
"""By page; every other one has the policy of all answers."""


class WebAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A file as an answer; `body` is empty where the client has it already (304)."""

    status: int
    body: bytes
    media_type: str
    headers: dict[str, str]


class _StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    etag: str


class WebFiles:
    """The files of `dist/`. It notices when the UI was built anew while the server runs."""

    def __init__(self, dist: Path = DIST) -> None:
        self._dist = dist
        self._built_at = -1
        self._names: frozenset[str] = frozenset()
        self._preloaded: dict[str, str] = {}
        self._stored: dict[str, _StoredFile] = {}
        self._lock = Lock()

    def problem(self) -> str | None:
        """Why there is no UI, and the command that repairs it; None if there is one."""
        if (self._dist / PAGE).exists():
            return None
        try:
            reason = json.loads((self._dist / REPORT_NAME).read_bytes())["problem"]
        except (OSError, ValueError, KeyError, TypeError):
            reason = None
        command = f"run `make ui` in {WEB.parent.parent}" if has_sources() else "install Luxx again"
        return f"{reason or 'it was not built when Luxx was installed'}; with a network connection, {command}"

    def answer(self, path: str, *, accepted: str, known_etags: str) -> WebAnswer | None:
        """The answer for the path below `/ui/`; None if there is no such file.

        `accepted` is the Accept-Encoding header, `known_etags` the header If-None-Match. A path that is no
        file and does not look like one is an address within the UI: its answer is the page.
        """
        with self._lock:
            self._refresh()
            name = path.strip("/") or PAGE
            if name not in self._names:
                if "." in name.rpartition("/")[2] or name.startswith("assets/"):
                    return None
                name = PAGE
            encoding, stored = self._encoded(name, accepted)
            links = self._preloaded.get(path.strip("/").partition("/")[0] or FIRST_AREA)
        headers = {
            "cache-control": IMMUTABLE if name.startswith("assets/") else REVALIDATED,
            "etag": stored.etag,
            "vary": "accept-encoding",
        }
        if encoding:
            headers["content-encoding"] = encoding
        if name.startswith("assets/"):
            # The page that draws diagrams has no origin and loads its scripts from here.
            headers["access-control-allow-origin"] = "*"
        if name.endswith(".html"):
            headers["cross-origin-opener-policy"] = "same-origin"
            microphone = "(self)" if name == PAGE else "()"  # For dictation.
            headers["permissions-policy"] = (
                f"camera=(), geolocation=(), microphone={microphone}, payment=(), usb=()"
            )
        if name == PAGE and links:
            headers["link"] = links
        if policy := PAGE_POLICIES.get(name):
            headers["content-security-policy"] = policy
            headers["x-dns-prefetch-control"] = "off"
        is_known = stored.etag in (part.strip().removeprefix("W/") for part in known_etags.split(","))
        media_type = MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream")
        status, body = (304, b"") if is_known else (200, stored.body)
        return WebAnswer(status=status, body=body, media_type=media_type, headers=headers)

    def _refresh(self) -> None:
        """Lists the files again if the UI was built since."""
        try:
            built_at = (self._dist / PAGE).stat().st_mtime_ns
        except FileNotFoundError:
            built_at = 0
        if built_at != self._built_at:
            self._built_at = built_at
            self._names = frozenset(self._list_names())
            self._preloaded = dict(self._list_preloaded())
            self._stored.clear()

    def _list_preloaded(self) -> Iterator[tuple[str, str]]:
        """By area, the header that makes a browser load its scripts at once, and not after those of the page
        have run."""
        try:
            areas = msgspec.json.decode((self._dist / PRELOADED_NAME).read_bytes(), type=dict[str, list[str]])
        except (OSError, msgspec.DecodeError):
            return
        for area, names in areas.items():
            yield area, ", ".join(f'</ui/{name}>; rel="modulepreload"' for name in names)

    def _list_names(self) -> Iterator[str]:
        for file in self._dist.rglob("*"):
            if file.is_file() and not file.name.startswith((REPORT_NAME, MANIFEST_NAME, PRELOADED_NAME)):
                yield file.relative_to(self._dist).as_posix()

    def _encoded(self, name: str, accepted: str) -> tuple[str, _StoredFile]:
        tokens = {part.partition(";")[0].strip() for part in accepted.lower().split(",")}
        for encoding, suffix in ENCODINGS.items():
            if encoding in tokens and f"{name}{suffix}" in self._names:
                return encoding, self._read(f"{name}{suffix}")
        return "", self._read(name)

    def _read(self, name: str) -> _StoredFile:
        if name not in self._stored:
            body = (self._dist / name).read_bytes()
            self._stored[name] = _StoredFile(body=body, etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"')
        return self._stored[name]


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
