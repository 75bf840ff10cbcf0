"""The example decks, documents and reports, each rendered once for all tests of a process."""

import json
import re
from functools import cache
from pathlib import Path

from luxx.infra.documents.render.files import make_file
from luxx.infra.documents.render.request import Rendered, RenderRequest, RenderSource
from luxx.wire.artifacts import ArtifactType

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "artifacts"


def example_source(kind: ArtifactType, language: str) -> RenderSource:
    """The example of a type, in `en` or `zh`."""
    name = {"ppt": "deck"}.get(kind, kind)
    if kind is ArtifactType.CHART:
        pages = ((EXAMPLES / f"chart.{language}.json").read_text("utf-8"),)
    elif kind is ArtifactType.SHEET:
        sheets = json.loads((EXAMPLES / f"sheet.{language}.json").read_text("utf-8"))["sheets"]
        pages = tuple(json.dumps(sheet) for sheet in sheets)
    else:
        text = (EXAMPLES / f"{name}.{language}.md").read_text("utf-8")
        mark = r"^---\n" if kind is ArtifactType.PPT else r"^(?=# )"
        pages = tuple(page for page in re.split(mark, text, flags=re.MULTILINE) if page.strip())
    return RenderSource(type=kind, name="Example", pages=pages)


@cache
def example(kind: ArtifactType, language: str, form: str) -> Rendered:
    """The rendered example with pictures of all pages."""
    return make_file(RenderRequest(source=example_source(kind, language), format=form, pictures=None))


def deck(*pages: str, **more: object) -> RenderSource:
    return RenderSource(type=ArtifactType.PPT, name="Deck", pages=pages, **more)  # type: ignore[arg-type]


def pages_of(kind: ArtifactType, *pages: str, **more: object) -> RenderSource:
    return RenderSource(type=kind, name="Artifact", pages=pages, **more)  # type: ignore[arg-type]


def render(source: RenderSource, form: str, pictures: tuple[int, ...] | None = ()) -> Rendered:
    return make_file(RenderRequest(source=source, format=form, pictures=pictures))
