"""The types of artifacts, which tools, the API, the database and the renderers name alike."""

from enum import StrEnum


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
