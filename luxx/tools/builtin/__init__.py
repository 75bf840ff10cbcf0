"""The built-in tools that need no other room: code, files, data, questions."""

from luxx.tools.builtin.ask import asking_tools
from luxx.tools.builtin.code import python_eval, python_tool
from luxx.tools.builtin.data import process_data
from luxx.tools.builtin.file import file_exists, file_list, file_read, file_write
from luxx.tools.builtin.file_search import file_grep
from luxx.tools.builtin.shell import shell_tool
from luxx.tools.core import ToolDefinition
from luxx.tools.sandbox.service import Sandbox


def builtin_tools() -> list[ToolDefinition]:
    """All of them, in the order a user sees them."""
    tools = [python_eval, file_read, file_write, file_list, file_exists, file_grep, process_data]
    return [*(tool.definition for tool in tools), *asking_tools()]


def program_tools(sandbox: Sandbox) -> list[ToolDefinition]:
    """The tools that start programs."""
    return [python_tool(sandbox), shell_tool(sandbox)]
