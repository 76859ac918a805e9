"""Trains an image classifier from balanced TFRecord shards: `imageshards train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from imageshards.commands import command_line
from trainer.cluster.hosts import Ended
from trainer.cluster.rendezvous import find_cluster, joined
from trainer.commands import make_parser, parse_config, run
from trainer.imports import quiet_import
from trainer.reader.batches import open_data
from trainer.training.several_hosts import described, only_chief_writes
from trainer.training.signals import Stopped, stopped_by_sigterm

__all__ = ["main", "make_parser"]

PROGRAM = "imageshards train"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `imageshards train`.

    Args:
        argv: The command line without the program's name; None for `sys.argv`.

    Returns:
        The exit code: 0, 2 for a user's mistake, 130 after Ctrl-C, 143 after SIGTERM, 1 if the run
        lost another host. After the last three, the same command resumes the run.
    """
    return run(PROGRAM, lambda: _train(argv), "stopped; run the same command again")


def _train(argv: Sequence[str] | None) -> int:
    # Flags are parsed before Keras is looked for: `--help` works without it.
    config = parse_config(argv)
    command_line.check_installed("keras")
    if config.tensorboard:
        command_line.check_installed("tensorboard")
    cluster = None
    if config.cluster is not None:
        with quiet_import():
            cluster = find_cluster(config.cluster, config.cluster_port)
    try:
        with (
            stopped_by_sigterm(),
            joined(cluster, config.cluster_timeout) as hosts,
            only_chief_writes(config, hosts.is_chief) as mine,
        ):
            if hosts.count > 1:
                hosts.compare(described(mine))
            # The data is checked before TensorFlow's import, which takes seconds: mistakes show
            # first.
            data = open_data(mine.read, output=mine.output)
            with quiet_import():
                from trainer.training.run import train
            train(mine, *data, hosts)
    except Stopped as e:
        print(f"{PROGRAM}: {e}", file=sys.stderr)
        return e.exit_code
    except Ended as e:
        print(f"{PROGRAM}: {e}", file=sys.stderr, flush=True)
        # A normal exit would run TensorFlow's shutdown, which waits minutes for the lost hosts.
        os._exit(e.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
