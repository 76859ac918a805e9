"""`imageshards COMMAND …`: one command for both programs. `python -m imageshards` is the same."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from imageshards import __version__
from imageshards.commands import COMMANDS, GROUPS, load_command
from imageshards.commands.command_line import EXIT_USER_ERROR, did_you_mean, end_now, run
from imageshards.errors import UserError, naming_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code, 2 where there is no such command.

    Args:
        argv: The command and its flags; None for those of this process.
    """
    name, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if name in ("-h", "--help", "--version"):
        return run("imageshards", lambda: _print(name))
    if name not in COMMANDS:
        print(help_text() if not name else _unknown(name), file=sys.stderr)
        return EXIT_USER_ERROR
    try:
        with naming_flags():
            command = load_command(name)
    except UserError as e:
        print(f"imageshards {name}: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    if argv is not None:
        return int(command.main(flags))
    # The command learns that this process is its own.
    sys.argv = [f"imageshards {name}", *flags]
    code = int(command.main())
    if "apache_beam" in sys.modules:
        end_now(code)
    return code


def _print(flag: str) -> int:
    print(f"imageshards {__version__}" if flag == "--version" else help_text())
    return 0


def help_text() -> str:
    """The commands by groups, each with what it is for."""
    width = max(map(len, COMMANDS))
    lines = [
        "usage: imageshards COMMAND ...",
        "",
        "Images into balanced, reproducible TFRecord shards, and a model trained on them.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:{width}}  {each.purpose}" for name, each in commands.items()]
    return "\n".join([*lines, "", "The flags of a command: imageshards COMMAND --help"])


def _unknown(name: str) -> str:
    if name.startswith("-"):
        return (
            f"imageshards: received {name!r} where a command is expected, as in imageshards build "
            f"{name} ...; all are in imageshards --help."
        )
    hint = did_you_mean(difflib.get_close_matches(name.replace("_", "-"), COMMANDS, n=1))
    return (
        f"imageshards: received {name!r}, which is no command; {hint}"
        f"{'All' if hint else 'all'} are in imageshards --help."
    )


if __name__ == "__main__":
    sys.exit(main())
