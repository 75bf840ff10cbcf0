"""What a renderer is asked for and what it answers. Pure values; no renderer is imported here."""

import msgspec

from luxx.wire.artifacts import ArtifactType

PICTURE_WIDTH = 1280
"""Pixels; the width of a picture of a page, unless a request says otherwise."""


class RenderSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of one version of an artifact.

    `pages` are Markdown for ppt, document and report; for sheet the JSON of each sheet,
    `{name, columns: [{name, type}], rows}`; for chart one JSON text. `theme` is the name of one of the themes
    ("" is the default), `language` a BCP 47 tag ("": found from the text). `images` are the bytes of the
    pictures that the source names, by their name in the source; a picture that is not in it is a problem.
    """

    type: ArtifactType
    name: str
    pages: tuple[str, ...]
    theme: str = ""
    language: str = ""
    images: dict[str, bytes] = {}


class RenderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`format` is pptx, pdf, docx, xlsx, png or svg; the text formats need no renderer.

    `pictures` are the pages of the file, counted from 1, whose PNG pictures are wanted; None: all. `width` is
    in pixels.
    """

    source: RenderSource
    format: str
    pictures: tuple[int, ...] | None = ()
    width: int = PICTURE_WIDTH


class RenderProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person or a model should correct in the source.

    `page` is a page of the source, counted from 1; None: the problem is about the whole artifact. `kind` is
    `overflow`, `glyph`, `blank`, `missing_text`, `not_reopened` or `source`. `text` is a sentence.
    """

    page: int | None
    kind: str
    text: str


class FilePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the file. `index` and `source_page` are counted from 1; `text` is the text of the page in the
    file, `picture` a PNG, or empty if it was not wanted.
    """

    index: int
    source_page: int
    text: str
    picture: bytes = b""


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A file, and what is known of it. `renderer` names the packages that wrote and drew it, with
    their versions.
    """

    data: bytes
    renderer: str
    pages: tuple[FilePage, ...] = ()
    problems: tuple[RenderProblem, ...] = ()


class RenderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a renderer prints: what it made, or a sentence that says why it made nothing."""

    rendered: Rendered | None = None
    error: str = ""
