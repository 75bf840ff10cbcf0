"""The command line: parses the options of `luxx` and runs the command."""

import argparse
import asyncio
import getpass
import io
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import uvicorn
from litestar import Litestar
from msgspec import UNSET
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from luxx import __version__
from luxx.api.http.protocol import BoundedProtocol, socket_options
from luxx.app.application import create_app
from luxx.app.cli.agent_and_conversation_commands import add_agent_commands, add_conversation_commands
from luxx.app.cli.backup_commands import add_backup_commands, confirm
from luxx.app.cli.chat.chat_command import add_chat_options, chat
from luxx.app.cli.doctor.checks import examine_installation
from luxx.app.cli.knowledge_commands import add_knowledge_commands
from luxx.app.cli.login_commands import add_key_commands, add_login_commands
from luxx.app.cli.memory_commands import add_memory_commands
from luxx.app.cli.provider_commands import add_provider_commands, print_models
from luxx.app.cli.runs.commands import add_room_commands, add_task_commands
from luxx.app.cli.server_api import add_server_options
from luxx.app.cli.server_commands import run_command
from luxx.app.cli.skill_commands import add_skill_commands
from luxx.app.container import Services
from luxx.app.core_services import CoreServices
from luxx.app.serve import DRAIN_SECONDS, check_start, run_worker, serve
from luxx.domain.accounts.rights import UserChange
from luxx.domain.accounts.users import UserView
from luxx.errors import LuxxError, Unavailable
from luxx.infra.config.file import load_config
from luxx.infra.config.schema import Config
from luxx.infra.observe import configure_logging, output_stream
from luxx.infra.secrets import Vault, find_secret
from luxx.infra.store.engine import Store, database_error, open_engine, resolve_url
from luxx.infra.store.upgrade import upgrade_database
from luxx.providers.local.files import list_models, pull_model
from luxx.providers.queries import delete_unreadable_keys
from luxx.tools.sandbox.service import Sandbox, install_packages
from luxx.wire.tool import CommandPermission

T = TypeVar("T")

RELOAD_VARIABLE = "LUXX_RELOAD_ARGUMENTS"
"""With `serve --reload` the parent process passes its arguments to the serving process in this variable."""

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
    except SQLAlchemyError as error:
        return _refuse(database_error(error).message)
    except OSError as error:
        return _refuse(f"{error.filename or options.run.__name__.strip('_')}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130


def _refuse(message: str) -> int:
    output_stream(sys.stderr).write(f"luxx: {' '.join(message.split())}\n")
    return 1


class _CommandParser(argparse.ArgumentParser):
    """Refuses a wrong command line in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"luxx: {message}; see `{self.prog} --help`\n")


def _parser() -> argparse.ArgumentParser:
    parser = _CommandParser(prog="luxx", description="People and AI agents, working together.")
    parser.add_argument("--version", action="version", version=f"luxx {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    serve_parser = _command(commands, "serve", _serve, "run the server")
    serve_parser.add_argument("--host")
    serve_parser.add_argument("--port", type=_port)
    serve_parser.add_argument("--reload", action="store_true", help="start again when the code changes")
    worker = _command(commands, "worker", _worker, "drive runs for the servers of a PostgreSQL database")
    worker.add_argument("--health-port", type=_port, help="answer /health, /ready and /metrics on 127.0.0.1")
    migrate = _command(commands, "migrate", _migrate, "migrate the database to this version")
    migrate.add_argument(
        "--forget-sealed-keys",
        action="store_true",
        help="after app.secret_key was lost: delete the provider keys encrypted with it",
    )
    _command(commands, "doctor", _doctor, "check the installation and say how to fix problems")
    _command(commands, "packages", _packages, "install tools.packages for the Python of python_execute")
    _user_commands(_command(commands, "user", None, "add, list, change and delete users"))
    _model_commands(
        _command(commands, "model", None, "the embedded model's files, and the models of providers")
    )
    add_agent_commands(_command(commands, "agent", None, "agents of a server"), _command)
    add_provider_commands(_command(commands, "provider", None, "the providers of a server"), _command)
    add_conversation_commands(
        _command(commands, "conversation", None, "your conversations of a server"), _command
    )
    add_key_commands(_command(commands, "key", None, "your personal API keys of a server"), _command)
    add_memory_commands(_command(commands, "memory", None, "what a server remembers for you"), _command)
    add_knowledge_commands(_command(commands, "knowledge", None, "knowledge bases of a server"), _command)
    add_skill_commands(_command(commands, "skill", None, "skills of a server"), _command)
    add_room_commands(_command(commands, "room", None, "run rooms of a server in the terminal"), _command)
    add_task_commands(_command(commands, "task", None, "run tasks of a server in the terminal"), _command)
    add_backup_commands(partial(_command, commands), configure)
    add_login_commands(commands, _command)
    chat_parser = _command(
        commands, "chat", lambda options: asyncio.run(chat(options)), "chat in the terminal"
    )
    add_chat_options(chat_parser)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int] | None, help_text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument(
        "--config", type=Path, help="the configuration file (default: config.yaml if it exists)"
    )
    parser.add_argument("--data-dir", help="the data directory (default: ./data)")
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def _user_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="what")
    add = _command(commands, "add", _user_add, "add a user; asks for the password")
    add.add_argument("username")
    add.add_argument("--level", type=int, choices=[1, 2, 3, 4], default=1)
    add.add_argument("--email")
    add.add_argument("--tenant", help="the name of an existing tenant (default: the default tenant)")
    passwd = _command(commands, "passwd", _user_passwd, "set a user's password; asks for it")
    passwd.add_argument("username")
    level = _command(commands, "level", _user_change, "set a user's permission level")
    level.add_argument("username")
    level.add_argument("level", type=int, choices=[1, 2, 3, 4])
    for name, is_active, help_text in (
        ("disable", False, "disable a user; end the user's sign-ins and runs"),
        ("enable", True, "enable a disabled user"),
    ):
        command = _command(commands, name, _user_change, help_text)
        command.add_argument("username")
        command.set_defaults(is_active=is_active)
    delete = _command(commands, "delete", _user_delete, "delete a user with all data and files")
    delete.add_argument("username")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    listing = _command(commands, "list", _user_list, "list the users")
    listing.add_argument("--tenant", help="list only the users of this tenant")


def _model_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="what")
    fetch = _command(commands, "pull", _model_pull, "download a model file")
    fetch.add_argument("name")
    listing = _command(commands, "list", _model_list, "list models")
    where = listing.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="files of the embedded model (default)")
    where.add_argument("--provider", help="the models of this provider of a server, by its name or id")
    add_server_options(listing)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; write a number from 0 to 65535")
    return int(text)


def configure(options: argparse.Namespace) -> Config:
    """Loads the configuration, first from options, then environment, then file; sets up logging with it."""
    values = {
        "app.host": getattr(options, "host", None),
        "app.port": getattr(options, "port", None),
        "data_dir": options.data_dir,
    }
    overrides = {key: value for key, value in values.items() if value is not None}
    config = load_config(options.config, os.environ, overrides)
    configure_logging("DEBUG" if config.app.debug else config.logging.level)
    return config


def _serve(options: argparse.Namespace) -> int:
    config = configure(options)
    if options.reload:
        return _serve_reloading(options, config)
    return 0 if serve(config) else 1


def _worker(options: argparse.Namespace) -> int:
    run_worker(configure(options), options.health_port)
    return 0


def _serve_reloading(options: argparse.Namespace, config: Config) -> int:
    arguments = {
        key: str(value) for key, value in vars(options).items() if key in ("config", "data_dir") and value
    }
    os.environ[RELOAD_VARIABLE] = msgspec.json.encode(arguments).decode()
    print(f"Luxx will listen on http://{config.app.host}:{config.app.port}", flush=True)
    uvicorn.run(
        "luxx.app.cli.commands:reloaded_app",
        factory=True,
        reload=True,
        host=config.app.host,
        port=config.app.port,
        http=BoundedProtocol,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        **socket_options(),
    )
    return 0


def reloaded_app() -> Litestar:
    """The application of a process that `serve --reload` restarts after each code change."""
    arguments: dict[str, str] = msgspec.json.decode(os.environ.get(RELOAD_VARIABLE, "{}"))
    config_file = arguments.get("config")
    options = argparse.Namespace(
        config=Path(config_file) if config_file else None,
        data_dir=arguments.get("data_dir"),
        host=None,
        port=None,
    )
    return create_app(Services(configure(options)))


def _migrate(options: argparse.Namespace) -> int:
    config = configure(options)
    check_start(config)
    engine = open_engine(resolve_url(config.database.url, Path(config.data_dir)))
    print(f"the database is at revision {upgrade_database(engine)}")
    if options.forget_sealed_keys:
        _forget_sealed_keys(config, engine)
    engine.dispose()
    return 0


def _forget_sealed_keys(config: Config, engine: Engine) -> None:
    secret = find_secret(
        config.app.secret_key, Path(config.data_dir), is_shared=engine.dialect.name != "sqlite"
    )
    vault = Vault(secret, previous=config.app.previous_secret_keys)
    store = Store(engine)
    try:
        count = store.write_now(lambda session: delete_unreadable_keys(session, vault))
    finally:
        store.close()
    print(f"deleted {count} provider keys; enter them again")


def _doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(examine_installation(configure(options)))
    for finding in findings:
        print(finding)
    return 1 if any(finding.is_bad for finding in findings) else 0


def _packages(options: argparse.Namespace) -> int:
    config = configure(options)
    sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    asyncio.run(sandbox.open())
    if sandbox.interpreter is None:
        raise Unavailable("Python does not start in the sandbox; run `luxx doctor` for the reason")
    install_packages(config.tools.packages, sandbox.interpreter.program, sandbox.packages)
    print(f"python_execute has {', '.join(sorted(config.tools.packages)) or 'no packages'}")
    return 0


def _user_add(options: argparse.Namespace) -> int:
    config = _configure_existing(options)
    password = _ask_password()
    level = CommandPermission(options.level)
    user = _with_services(
        config,
        lambda services: services.operator.add_user(
            options.username, password, level=level, email=options.email, tenant=options.tenant
        ),
    )
    print(f"added {user.username}, level {user.permission_level}")
    return 0


def _user_passwd(options: argparse.Namespace) -> int:
    config = _configure_existing(options)
    password = _ask_password()
    user = _with_services(config, lambda services: services.operator.set_password(options.username, password))
    print(f"{user.username} has a new password; all sign-ins of this user have ended")
    return 0


def _user_change(options: argparse.Namespace) -> int:
    """Changes the level, or with `is_active` disables or enables the user."""
    level = getattr(options, "level", None)
    change = UserChange(
        permission_level=UNSET if level is None else CommandPermission(level),
        is_active=getattr(options, "is_active", UNSET),
    )
    config = _configure_existing(options)
    user = _with_services(config, lambda services: services.operator.change_user(options.username, change))
    print(f"{user.username} has level {user.permission_level} and is {_state(user)}")
    return 0


def _user_delete(options: argparse.Namespace) -> int:
    config = _configure_existing(options)
    if not options.yes:
        confirm(f"This deletes {options.username} with all conversations and files.", options.username)
    user = _with_services(config, lambda services: services.operator.delete_user(options.username))
    print(f"deleted {user.username}")
    return 0


def _user_list(options: argparse.Namespace) -> int:
    async def read(services: CoreServices) -> tuple[list[UserView], dict[int, str]]:
        operator = services.operator
        return await operator.all_users(tenant=options.tenant), await operator.tenant_names()

    users, tenants = _with_services(_configure_existing(options), read)
    for user in users:
        tenant = tenants.get(user.tenant_id, "")
        print(f"{user.id}\t{user.username}\tlevel {user.permission_level}\t{_state(user)}\t{tenant}")
    return 0


def _state(user: UserView) -> str:
    return "active" if user.is_active else "disabled"


def _configure_existing(options: argparse.Namespace) -> Config:
    """The configuration of a server that has a database. Raises ConfigError where there is none."""
    config = configure(options)
    check_start(config, needs_data=True)
    return config


def _with_services(config: Config, work: Callable[[CoreServices], Awaitable[T]]) -> T:
    """Migrates the database, creates the first user if there is none and runs `work`; opens no server."""
    services = CoreServices(config)

    async def run() -> T:
        await asyncio.to_thread(upgrade_database, services.engine)
        await services.operator.ensure_first_user(os.environ.get("LUXX_ADMIN_PASSWORD"))
        return await work(services)

    try:
        return asyncio.run(run())
    finally:
        services.release()


def _ask_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password = getpass.getpass("password: ")
    if getpass.getpass("again: ") != password:
        raise LuxxError("the two passwords differ; nothing was changed")
    return password


def _model_pull(options: argparse.Namespace) -> int:
    pull_model(options.name, Path(configure(options).data_dir), lambda line: print(line, flush=True))
    return 0


def _model_list(options: argparse.Namespace) -> int:
    if options.provider is not None:
        return run_command(
            lambda server, screen, chosen: print_models(server, screen, chosen.provider), options
        )
    for model in list_models(Path(configure(options).data_dir)):
        print(model)
    return 0
