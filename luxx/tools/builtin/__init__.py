"""The built-in tools: code, files, data, the web, questions, delegation, the page."""

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.documents.reader import RunReader, read_in_process
from luxx.tools.builtin.data import process_data
from luxx.tools.builtin.file import file_exists, file_list, file_read, file_write
from luxx.tools.builtin.file_edit import file_edit, file_multi_edit
from luxx.tools.builtin.file_search import file_glob, file_grep
from luxx.tools.builtin.programs import python_eval
from luxx.tools.builtin.run import run_tools
from luxx.tools.builtin.ui import ui_tools
from luxx.tools.builtin.web import web_access, web_tools
from luxx.tools.core import ToolDefinition


def builtin_tools(
    config: ToolsConfig | None = None, run_reader: RunReader = read_in_process
) -> list[ToolDefinition]:
    """All built-in tools but those of `programs.program_tools`, in display order.

    Default: the default configuration. `run_reader` starts the processes that parse documents from the web.
    """
    # fmt: off
    tools = (
        python_eval, file_read, file_write, file_edit, file_multi_edit, file_list, file_exists, file_glob,
        file_grep, process_data,
    )
    # fmt: on
    web = web_tools(web_access(config or ToolsConfig(), run_reader))
    return [*(tool.definition for tool in tools), *web, *run_tools(), *ui_tools()]
