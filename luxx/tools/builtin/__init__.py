"""The built-in tools that need no other room: code, files, data, questions."""

from luxx.tools.builtin.ask import asking_tools
from luxx.tools.builtin.code import python_eval
from luxx.tools.builtin.data import process_data
from luxx.tools.builtin.file import file_exists, file_list, file_read, file_write
from luxx.tools.builtin.file_edit import file_edit, file_multi_edit
from luxx.tools.builtin.file_glob import file_glob
from luxx.tools.builtin.file_search import file_grep
from luxx.tools.builtin.result import reading_tools
from luxx.tools.core import ToolDefinition


def builtin_tools() -> list[ToolDefinition]:
    """All of them, in the order a user sees them."""
    tools = [
        python_eval,
        file_read,
        file_write,
        file_edit,
        file_multi_edit,
        file_list,
        file_exists,
        file_glob,
        file_grep,
        process_data,
    ]
    return [*(tool.definition for tool in tools), *reading_tools(), *asking_tools()]
