"""Calls typst: fixed programs of this package, whose input is JSON and therefore never a program.

The pool of threads of typst is made at the import, because a renderer can start none afterwards.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

os.environ["RAYON_NUM_THREADS"] = "1"

import typst

from luxx.infra.documents.render.fonts import font_directories

typst.compile(b"#set page(width: 1pt, height: 1pt)")

_IMAGE = b"""
#set page(
  width: float(sys.inputs.width) * 1pt,
  height: float(sys.inputs.height) * 1pt,
  margin: 0pt,
  fill: none,
)
#image(bytes(sys.inputs.svg), format: "svg", width: 100%, height: 100%)
"""


@cache
def _fonts() -> typst.Fonts:
    return typst.Fonts(
        include_system_fonts=False,
        include_embedded_fonts=True,
        font_paths=[str(directory) for directory in font_directories()],
    )


def svg_png(svg: str, width: float, height: float, *, scale: float = 2.0) -> bytes:
    """An SVG of `width` × `height` as PNG, with `scale` pixels for each unit."""
    inputs = {"svg": svg, "width": str(float(width)), "height": str(float(height))}
    compiler = typst.Compiler(_IMAGE, font_paths=_fonts(), sys_inputs=inputs)
    return _one(compiler.compile(format="png", ppi=72 * scale))


def pdf_of(program: str, data: dict[str, Any]) -> bytes:
    """The PDF that a program of this package makes of `data`, which it reads as JSON."""
    source = Path(__file__).with_name(program).read_bytes()
    inputs = {"data": msgspec.json.encode(data).decode()}
    compiler = typst.Compiler(source, font_paths=_fonts(), sys_inputs=inputs)
    return _one(compiler.compile(format="pdf", timestamp=0))


def _one(pages: bytes | list[bytes] | None) -> bytes:
    assert pages is not None
    return pages if isinstance(pages, bytes) else pages[0]
