"""The types and problems of artifacts, which tools, the API, the database and the renderers name alike; and
the event of a change."""

from enum import StrEnum

import msgspec

from luxx.wire.turn import EventBase


class ArtifactType(StrEnum):
    """What an artifact is; it decides how the source is written and which formats can be downloaded."""

    PPT = "ppt"
    DOCUMENT = "document"
    REPORT = "report"
    CODE = "code"
    WEB = "web"
    SHEET = "sheet"
    CHART = "chart"
    DIAGRAM = "diagram"


class ArtifactProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something to correct in the source of an artifact. `page` is a page of the source, counted from 1;
    null: it is about the whole artifact, or its renderer. `text` is a sentence that says what to do."""

    page: int | None
    kind: str
    text: str


class ArtifactUpdated(EventBase, frozen=True, kw_only=True, tag="artifact_updated"):
    """A tool call made or changed an artifact, whose newest version is now `version`. `pages_changed` are
    pages of that version, counted from 1."""

    artifact_id: str
    version: int
    pages_changed: list[int]
    problems: list[ArtifactProblem] = []
