"""`luxx model pull|list`: the files of the embedded model, and the models of a server's providers."""

import argparse
from pathlib import Path

from luxx.app.cli.command_line import add_command, configure
from luxx.app.cli.provider_commands import print_models
from luxx.app.cli.server_api import add_server_options
from luxx.app.cli.server_commands import run_command
from luxx.providers.local.files import list_models, pull_model


def add_model_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="what")
    fetch = add_command(commands, "pull", _model_pull, "download a model file")
    fetch.add_argument("name")
    listing = add_command(commands, "list", _model_list, "list models")
    where = listing.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="files of the embedded model (default)")
    where.add_argument("--provider", help="the models of this provider of a server, by its name or id")
    add_server_options(listing)


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
