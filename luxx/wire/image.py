"""An image that a step shows: where its file is, never its bytes."""

import msgspec


class StepImage(msgspec.Struct, frozen=True, kw_only=True):
    """`file_id` is for `GET /files/{file_id}`, by the step's user alone. `path` is within the workspace.

    `sha256` is of the file as it was; whether it is still that, only the file tells.
    """

    file_id: str
    name: str
    path: str
    media_type: str
    size: int
    width: int
    height: int
    sha256: str
