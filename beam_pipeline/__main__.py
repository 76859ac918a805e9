"""Runs `imageshards build`: parses flags, and turns errors into sentences and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from beam_pipeline import cli
from beam_pipeline.cli import make_parser
from imageshards.commands import command_line
from imageshards.commands.command_line import end_now

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a build; returns 0 (done), 1 (failed), 2 (the user can fix it) or 130 (stopped)."""
    return command_line.run(
        "imageshards build",
        lambda: _build(argv),
        "stopped. Run the same command again to resume from the finished shards",
    )


def _build(argv: Sequence[str] | None) -> int:
    options, beam_args = cli.parse(sys.argv[1:] if argv is None else argv)
    # Beam takes seconds to import, so `--help` and wrong flags are answered before. A missing Beam
    # must be reported before anything is written.
    command_line.check_installed("apache_beam")
    from beam_pipeline.run import run

    # A program that gives other arguments than its own may need all of Beam after the build.
    print(run(options, beam_args, ends_process=argv is None or [*argv] == sys.argv[2:]))
    return 0


if __name__ == "__main__":
    end_now(main())
