"""`imageshards completion SHELL`: prints what makes a shell complete commands, flags and paths."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import shtab

from imageshards.commands import COMMANDS, parser_of
from imageshards.commands.command_line import Parser, run

SHELLS = ("bash", "zsh", "tcsh")

_EPILOG = """\
bash: add to ~/.bashrc        eval "$(imageshards completion bash)"
zsh:  write once              imageshards completion zsh > ~/.zfunc/_imageshards
      and have in ~/.zshrc    fpath+=~/.zfunc; autoload -Uz compinit; compinit
tcsh: write once              imageshards completion tcsh > ~/.imageshards.tcsh
      and have in ~/.tcshrc   source ~/.imageshards.tcsh
"""


def make_parser() -> Parser:
    """The parser of `imageshards completion`."""
    parser = Parser(
        prog="imageshards completion",
        description="Prints what makes a shell complete commands, flags, choices and paths.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    return parser


def completion_script(shell: str) -> str:
    """The script for one of `SHELLS`."""
    parser = argparse.ArgumentParser(prog="imageshards")
    parser.add_argument("--version", action="store_true", help="show the version")
    added = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = parser_of(name)
        for action in own._actions:
            if (paths := _paths(action)) is not None:
                action.complete = paths  # type: ignore[attr-defined]
        added.add_parser(name, parents=[own], add_help=False, help=command.purpose)
    return shtab.complete(parser, shell)


def _paths(action: argparse.Action) -> Any:
    """How the shell completes a value: --help says what it is by its metavar."""
    shown = str(action.metavar or "").split("|") if action.nargs != 0 else []
    if any(part.startswith(("DIR", "FOLDER")) for part in shown):
        return shtab.DIRECTORY
    return shtab.FILE if {"FILE", "PATH"} & {*shown} else None


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        print(completion_script(make_parser().parse_args(argv).shell))
        return 0

    return run("imageshards completion", body)
