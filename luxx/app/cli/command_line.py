"""What all commands of `luxx` have in common: parsers that load their options late; the configuration."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from luxx.infra.config.file import load_config
from luxx.infra.config.schema import Config
from luxx.infra.observe import configure_logging

RunCommand = Callable[[argparse.Namespace], int]
"""Runs a command with its options. Returns the exit code."""

AddOptions = Callable[[argparse.ArgumentParser], None]
"""Adds the options of a command to its parser."""


class CommandParser(argparse.ArgumentParser):
    """Refuses a wrong command line in one sentence.

    The module of a command is imported, and its options are added, only when this command is called: most
    commands need little of what a server imports, which takes a second and a half.
    """

    _load: Callable[[], AddOptions] | None = None

    def load_later(self, load: Callable[[], AddOptions]) -> None:
        """`load` gives the function that adds the options of this parser."""
        self._load = load

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        if self._load is not None:
            load, self._load = self._load, None
            load()(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"luxx: {message}; see `{self.prog} --help`\n")


def add_command(commands: Any, name: str, run: RunCommand | None, help_text: str) -> CommandParser:
    """Adds a command to subparsers. `run` is None where options choose it or it has subcommands."""
    parser: CommandParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument(
        "--config", type=Path, help="the configuration file (default: config.yaml if it exists)"
    )
    parser.add_argument("--data-dir", help="the data directory (default: ./data)")
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def port(text: str) -> int:
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
