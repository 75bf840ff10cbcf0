"""Fetches a web page and converts it to readable text: HTML, plain text and PDF."""

import msgspec

from luxx.errors import LuxxError, ToolFailed
from luxx.infra.documents.bounds import MOST_LINKS, PageForm, PageLink, PageRequest
from luxx.infra.documents.reader import DocumentProcess, PageProcess
from luxx.infra.network.fetch import CheckRedirect, Fetched, Fetcher, FetchRequest
from luxx.tools.web.clients import WebClient
from luxx.wire.source import Source, citable, source_of

MAX_CHARACTERS = 500_000
MAX_TEXT_BYTES = 5 * 1024 * 1024
MAX_PDF_BYTES = 20 * 1024 * 1024
_ACCEPT = (
    "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, application/pdf;q=0.8, */*;q=0.5"
)
_HTML = frozenset(("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"))
_PDF = frozenset(("application/pdf", "application/x-pdf"))
# fmt: off
_TEXTS = frozenset((
    "application/json", "application/xml", "application/javascript", "application/x-javascript",
    "application/yaml", "application/x-yaml", "application/toml", "application/sql", "application/ld+json",
    "application/x-ndjson", "application/x-sh", "application/x-httpd-php", "application/rtf", "image/svg+xml",
))
# fmt: on
_UNSPECIFIED_TYPES = frozenset(
    ("", "application/octet-stream", "binary/octet-stream", "application/x-download")
)


class WebPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page that was read. `url`: the address after redirects; `pages`: only of a PDF. `source`: the name
    by which a report of this run cites it, such as S3."""

    source: str = ""
    url: str
    title: str
    format: PageForm
    content_type: str
    content: str
    links: list[PageLink] = []
    charset: str = ""
    pages: int = 0
    note: str = ""
    sources: list[Source] = []


class WebReader:
    """Reads pages. One per server."""

    def __init__(self, fetcher: Fetcher, pages: PageProcess, documents: DocumentProcess) -> None:
        self._fetcher = fetcher
        self._pages = pages
        self._documents = documents

    async def read(
        self, url: str, form: PageForm, client: WebClient, check_redirect: CheckRedirect, *, share: int = 1
    ) -> WebPage:
        """The page, up to 1/`share` of the size limits. Raises ToolFailed if it cannot be read."""
        request = FetchRequest(url=url, accept=_ACCEPT, size_of=_size_of, check_redirect=check_redirect)
        try:
            async with client.slots:
                fetched = await self._fetcher.fetch(request, client.resolve)
                if fetched.status >= 400:
                    raise ToolFailed(f"{fetched.url} answered {fetched.status_words}")
                if _is_pdf(fetched):
                    return await self._read_pdf(fetched, form, client.user_id, share)
                if _size_of(fetched.content_type) <= 0:
                    raise ToolFailed(_unsupported_type(fetched))
                return await self._read_text(fetched, form, client.user_id, share)
        except ToolFailed:
            raise
        except LuxxError as error:
            raise ToolFailed(error.message) from error

    async def _read_pdf(self, fetched: Fetched, form: PageForm, user_id: int, share: int) -> WebPage:
        if fetched.is_cut:
            limit = f"{MAX_PDF_BYTES // 2**20} MiB, which is the limit"
            raise ToolFailed(f"{fetched.url} is a PDF of more than {limit}")
        pdf = await self._documents.read(
            fetched.body,
            extension="pdf",
            characters=MAX_CHARACTERS // share,
            user_id=user_id,
            may_cut=True,
        )
        text = pdf.text
        if pdf.error:
            raise ToolFailed(f"{fetched.url} is a PDF {_PDF_PROBLEMS.get(pdf.error, 'that is damaged')}")
        title = pdf.title or fetched.url.rpartition("/")[2]
        return WebPage(
            url=fetched.url,
            title=title,
            format=PageForm.TEXT if form is PageForm.HTML else form,
            content_type=fetched.content_type,
            content=text,
            pages=pdf.pages,
            note=_note(text, is_cut=pdf.is_cut) or _IMAGES_ONLY_NOTE * (not text.strip()),
            sources=citable(source_of(fetched.url, title, text)),
        )

    async def _read_text(self, fetched: Fetched, form: PageForm, user_id: int, share: int) -> WebPage:
        is_html = fetched.content_type in _HTML or (
            fetched.content_type in _UNSPECIFIED_TYPES and _looks_like_html(fetched)
        )
        page_request = PageRequest(
            url=fetched.url,
            form=form,
            characters=MAX_CHARACTERS // share,
            links=MOST_LINKS // share,
            charset=fetched.charset,
            is_html=is_html,
        )
        page = await self._pages.read(fetched.body, page_request, user_id)
        if page.error == "binary":
            raise ToolFailed(_unsupported_type(fetched))
        if page.error:
            raise ToolFailed(
                f"{fetched.url} cannot be read: {_PAGE_PROBLEMS.get(page.error, 'it is damaged')}"
            )
        title = page.title or fetched.url
        is_source = is_html and form is PageForm.HTML
        is_cut = page.is_cut or fetched.is_cut
        needs_script = is_html and not is_source and not page.text.strip()
        return WebPage(
            url=fetched.url,
            title=title,
            format=form if is_html else PageForm.TEXT,
            content_type=fetched.content_type,
            content=page.text,
            links=[] if form is PageForm.HTML else page.links,
            charset=page.charset,
            note=_NEEDS_SCRIPTS_NOTE if needs_script else _note(page.text, is_cut=is_cut),
            sources=citable(source_of(fetched.url, title, page.description or page.text * (not is_source))),
        )


_PDF_PROBLEMS = {
    "encrypted": "that is encrypted",
    "memory": "that needs too much memory to be read",
    "time": "that takes too long to be read",
    "long": "with too much text to be read",
}
_PAGE_PROBLEMS = {"memory": "it needs too much memory", "time": "it takes too long", "long": "it is too long"}
_IMAGES_ONLY_NOTE = "This PDF has no text in it: its pages are images."
_NEEDS_SCRIPTS_NOTE = "This page has no text; scripts may create its content, and web_fetch runs no scripts."


def _size_of(content_type: str) -> int:
    """How many bytes of a body of this type are read; 0 for an unsupported type."""
    if content_type in _PDF:
        return MAX_PDF_BYTES
    is_text = content_type.startswith("text/") or content_type.endswith(("+json", "+xml"))
    return MAX_TEXT_BYTES if is_text or content_type in _TEXTS | _HTML | _UNSPECIFIED_TYPES else 0


def _is_pdf(fetched: Fetched) -> bool:
    # Many servers send no type, or a generic one, for file types that they do not know.
    return fetched.content_type in _PDF or (
        fetched.content_type in _UNSPECIFIED_TYPES and fetched.body[:1024].lstrip().startswith(b"%PDF-")
    )


def _looks_like_html(fetched: Fetched) -> bool:
    head = fetched.body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<!--", b"<title"))


def _unsupported_type(fetched: Fetched) -> str:
    content_type = fetched.content_type or "of no known type"
    size = "" if fetched.length is None else f", {fetched.length:,} bytes"
    return f"{fetched.url} is {content_type}{size}: only web pages, texts and PDFs can be read"


def _note(text: str, *, is_cut: bool) -> str:
    return f"Only the beginning was read: {len(text):,} characters." if is_cut else ""
