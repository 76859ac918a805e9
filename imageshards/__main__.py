"""Runs `imageshards COMMAND …`, the one command of both programs, or `python -m imageshards`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from imageshards import __version__
from imageshards.commands import COMMANDS, GROUPS, load_command
from imageshards.commands.command_line import EXIT_USER_ERROR, did_you_mean, end_now, run
from imageshards.errors import UserError, naming_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; an unknown command returns 2.

    Args:
        argv: The command and its flags; None for the arguments of this process.
    """
    # Without arguments the name is empty, and the help goes to standard error.
    name, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if name in ("-h", "--help", "--version"):
        return run("imageshards", lambda: _print(name))
    if name not in COMMANDS:
        print(help_text() if not name else _unknown(name), file=sys.stderr)
        return EXIT_USER_ERROR
    try:
        # The import runs before the command's own `run`, which prints errors later.
        with naming_flags():
            command = load_command(name)
    except UserError as e:
        print(f"imageshards {name}: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    code = int(command.main(flags))
    if argv is None and "apache_beam" in sys.modules:
        end_now(code)
    return code


def _print(flag: str) -> int:
    print(f"imageshards {__version__}" if flag == "--version" else help_text())
    return 0


def help_text() -> str:
    """Returns the text of `imageshards --help`: the commands in groups, each with its purpose."""
    width = max(map(len, COMMANDS))
    lines = [
        "usage: imageshards COMMAND ...",
        "",
        "Turns images into balanced TFRecord shards, and trains models on the shards.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:{width}}  {purpose}" for name, (_, purpose) in commands.items()]
    return "\n".join([*lines, "", "imageshards COMMAND --help lists the flags of a command."])


def _unknown(name: str) -> str:
    hint = did_you_mean(difflib.get_close_matches(name.replace("_", "-"), COMMANDS, n=1))
    return (
        f"imageshards: received {name!r}, which is no command; {hint}"
        f"{'All' if hint else 'all'} are in imageshards --help."
    )


if __name__ == "__main__":
    sys.exit(main())
