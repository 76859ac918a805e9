"""`python -m beam_pipeline`: parses, runs, and turns errors into sentences and exit codes."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence

from beam_pipeline import cli, console


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a build.

    Returns:
        0 done, 1 failed, 2 something the user can fix, 130 stopped.
    """
    return console.run(
        lambda: _build(sys.argv[1:] if argv is None else argv),
        "stopped; no data set was committed. Run the same command again to resume from the "
        "finished shards.",
    )


def _build(argv: Sequence[str]) -> int:
    options, beam_args = cli.parse(argv)
    # Beam is imported after this: --help answers at once, and worker processes start now.
    from beam_pipeline.run import run

    print(run(options, beam_args))
    return 0


def end_now(code: int) -> None:
    """Ends the process when what was registered to run at its exit has run."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Taking Beam and its threads apart takes a second, and for ever if it was interrupted.
    end_now(main())
