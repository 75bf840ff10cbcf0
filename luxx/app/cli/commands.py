"""The command line: finds the command of `luxx`, runs it and reports its errors."""

import io
import os
import sys
from functools import partial
from pkgutil import resolve_name

from luxx import __version__
from luxx.app.cli.command_line import AddOptions, CommandParser, add_command
from luxx.app.startup import RICH_PACKAGES, disable_gc, freeze_gc, hidden_modules
from luxx.errors import LuxxError
from luxx.infra.observe import output_stream

COMMANDS = {
    "serve": ("luxx.app.cli.serving_commands:add_serve_options", "run the server"),
    "worker": (
        "luxx.app.cli.serving_commands:add_worker_options",
        "drive runs for the servers of a PostgreSQL database",
    ),
    "migrate": ("luxx.app.cli.serving_commands:add_migrate_options", "migrate the database to this version"),
    "doctor": (
        "luxx.app.cli.serving_commands:add_doctor_options",
        "check the installation and say how to fix problems",
    ),
    "packages": (
        "luxx.app.cli.serving_commands:add_packages_options",
        "install tools.packages for the Python of python_execute",
    ),
    "user": ("luxx.app.cli.user_commands:add_user_commands", "add, list, change and delete users"),
    "model": (
        "luxx.app.cli.model_commands:add_model_commands",
        "the embedded model's files, and the models of providers",
    ),
    "agent": ("luxx.app.cli.agent_and_conversation_commands:add_agent_commands", "agents of a server"),
    "provider": ("luxx.app.cli.provider_commands:add_provider_commands", "the providers of a server"),
    "conversation": (
        "luxx.app.cli.agent_and_conversation_commands:add_conversation_commands",
        "your conversations of a server",
    ),
    "key": ("luxx.app.cli.login_commands:add_key_commands", "your personal API keys of a server"),
    "memory": ("luxx.app.cli.memory_commands:add_memory_commands", "what a server remembers for you"),
    "knowledge": ("luxx.app.cli.knowledge_commands:add_knowledge_commands", "knowledge bases of a server"),
    "artifact": (
        "luxx.app.cli.artifact_commands:add_artifact_commands",
        "documents, slides and other artifacts",
    ),
    "mcp": ("luxx.app.cli.mcp_commands:add_mcp_commands", "MCP servers of a server, and their tools"),
    "skill": ("luxx.app.cli.skill_commands:add_skill_commands", "skills of a server"),
    "room": ("luxx.app.cli.runs.commands:add_room_commands", "run rooms of a server in the terminal"),
    "task": ("luxx.app.cli.runs.commands:add_task_commands", "run tasks of a server in the terminal"),
    "backup": ("luxx.app.cli.backup_commands:add_backup_options", "back up all data while the server runs"),
    "restore": ("luxx.app.cli.backup_commands:add_restore_options", "restore a backup"),
    "export": ("luxx.app.cli.backup_commands:add_export_options", "export all data of one user to a file"),
    "import": ("luxx.app.cli.backup_commands:add_import_options", "import a file made by `luxx export`"),
    "login": (
        "luxx.app.cli.login_commands:add_login_options",
        "sign in to a server, for the commands that use it",
    ),
    "logout": ("luxx.app.cli.login_commands:add_logout_options", "end the sign-in of `luxx login`"),
    "chat": ("luxx.app.cli.chat.chat_command:add_chat_options", "chat in the terminal"),
}
"""Each command: the function that adds its options, in a module that only it loads, and its help text."""

EXIT_OUTPUT_CLOSED = 141
"""What a shell reports of a program whose reader has gone: 128 and the number of SIGPIPE."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code. Prints an error as one sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            # It lacks characters that models write.
            stream.reconfigure(errors="replace")
    options = _parser().parse_args(argv)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OUTPUT_CLOSED
    except LuxxError as error:
        return _refuse(error.message)
    except OSError as error:
        return _refuse(f"{error.filename or options.command_name}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130


def _refuse(message: str) -> int:
    output_stream(sys.stderr).write(f"luxx: {' '.join(message.split())}\n")
    return 1


def _parser() -> CommandParser:
    parser = CommandParser(prog="luxx", description="People and AI agents, working together.")
    parser.add_argument("--version", action="version", version=f"luxx {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command_name")
    for name, (options, help_text) in COMMANDS.items():
        add_command(commands, name, None, help_text).load_later(partial(load, options))
    return parser


def load(name: str) -> AddOptions:
    """What `module:function` names, imported as fast as a start needs it."""
    disable_gc()
    with hidden_modules(*RICH_PACKAGES):
        loaded: AddOptions = resolve_name(name)
    freeze_gc()
    return loaded


def load_all() -> None:
    """Imports the modules of all commands: for a process that becomes commands."""
    for options, _help_text in COMMANDS.values():
        load(options)
