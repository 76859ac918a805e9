"""What all commands share: the data set they are about, exit codes, errors on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

from imageshards.command_line import Parser
from imageshards.errors import user_error_in

EXIT_USER_ERROR = 2
EXIT_STOPPED = 130


def data_set_parser(command: str, description: str, epilog: str) -> Parser:
    """A parser of `imageshards COMMAND DIR …`."""
    parser = Parser(prog=f"imageshards {command}", description=description, epilog=epilog)
    parser.add_argument(
        "directory", metavar="DIR", help="what a build wrote: a folder, gs:// or s3://"
    )
    return parser


def run(body: Callable[[], int], stopped: str = "stopped") -> int:
    """Runs `body`, and prints a user's mistake as one sentence on stderr.

    Args:
        body: Returns an exit code.
        stopped: What is printed after Ctrl-C.

    Returns:
        The exit code of `body`, or 2 for a user's mistake, or 130 after Ctrl-C.
    """
    try:
        return body()
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return EXIT_STOPPED
    except Exception as e:
        known = user_error_in(e)
        if known is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        return EXIT_USER_ERROR
