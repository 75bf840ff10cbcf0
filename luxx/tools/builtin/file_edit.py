"""The tools file_edit and file_multi_edit, which replace text in a file atomically.

`edit_matching` finds the text, `edit_text` applies the edits, `files.workspace` replaces the file.
"""

import codecs
from typing import Any

from luxx.errors import ToolFailed
from luxx.tools.builtin.edit_text import Applied, Diff, EditedText, diff_of
from luxx.tools.builtin.file import PATH, encode_text, require_text, workspace_of
from luxx.tools.core import CommandPermission, Risk, ToolContext
from luxx.tools.factory import tool

MAX_EDITS = 100
_EDIT: dict[str, Any] = {
    "old_string": {
        "type": "string",
        "description": "What is there now, with enough lines around it to be the only place",
    },
    "new_string": {"type": "string", "description": "What is to be there instead; empty deletes"},
    "replace_all": {"type": "boolean", "default": False, "description": "Every place, not the only one"},
}
_EDIT_NEEDS = ["old_string", "new_string"]
_HOW_IT_MATCHES = (
    "A text that is not there exactly is looked for with other escapes, indentation or spacing, and at last "
    "by its first and last lines; `strategy` in the answer says how it was found, `diff` what has changed. "
    "Line ends (CRLF or LF) stay as they are in the file."
)


@tool(
    name="file_edit",
    description=f"Replace a piece of text in a text file of the workspace. {_HOW_IT_MATCHES}",
    parameters={"path": PATH, **_EDIT},
    required_params=["path", *_EDIT_NEEDS],
    category="file",
    required_permission=CommandPermission.WRITE,
    risk=Risk.MEDIUM,
)
def file_edit(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    [applied], answer = _edit(arguments["path"], [arguments], context, is_numbered=False)
    return {"strategy": applied.strategy, "replacements": applied.replacements, **answer}


@tool(
    name="file_multi_edit",
    description=(
        "Make several edits of one text file of the workspace, in order, each in what the ones before it "
        f"have left. If one cannot be made, none is. {_HOW_IT_MATCHES}"
    ),
    parameters={
        "path": PATH,
        "edits": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_EDITS,
            "items": {
                "type": "object",
                "properties": _EDIT,
                "required": _EDIT_NEEDS,
                "additionalProperties": False,
            },
        },
    },
    required_params=["path", "edits"],
    category="file",
    required_permission=CommandPermission.WRITE,
    risk=Risk.MEDIUM,
)
def file_multi_edit(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    applied, answer = _edit(arguments["path"], arguments["edits"], context, is_numbered=True)
    return {"edits": applied, **answer}


def _edit(
    raw_path: str, edits: list[dict[str, Any]], context: ToolContext, *, is_numbered: bool
) -> tuple[list[Applied], dict[str, Any]]:
    """How each edit was applied, and the part of the answer that describes the file.

    `is_numbered`: an error names the number of the edit that failed.
    """
    workspace = workspace_of(context)
    path = workspace.relative(raw_path)
    applied: list[Applied] = []
    diffs: list[Diff] = []

    def require_not_cancelled() -> None:
        if context.actions.cancelled():
            raise ToolFailed("the edit was cancelled; nothing was changed")

    def change(data: bytes) -> bytes:
        bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        text = EditedText(_decoded(data.removeprefix(bom), path))
        for number, edit in enumerate(edits, 1):
            require_not_cancelled()
            replace_all = bool(edit.get("replace_all", False))
            try:
                applied.append(
                    text.apply(edit["old_string"], edit["new_string"], replace_all=replace_all, where=path)
                )
            except ToolFailed as error:
                where = f"edit {number} of {len(edits)}, so none was made: " if is_numbered else ""
                raise ToolFailed(where + error.message) from error
        changed = bom + encode_text(text.result())
        if changed == data:
            raise ToolFailed(f"the edit leaves {path} as it is; nothing was changed")
        # Everything slow happens before the file changes, because after a timeout the model edits again.
        diffs.append(diff_of(text, path))
        return changed

    workspace.change(path, change, precondition=require_not_cancelled)
    (diff,) = diffs
    answer: dict[str, Any] = {
        "path": path,
        "lines_added": diff.added,
        "lines_removed": diff.removed,
        "diff": diff.text,
    }
    if diff.is_cut:
        answer["note"] = "The diff is cut; read the file to see the rest."
    return applied, answer


def _decoded(data: bytes, path: str) -> str:
    require_text(data, path, len(data))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailed(
            f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start:,}), so an "
            "edit could damage it; replace the whole file with file_write, or leave it"
        ) from error
