"""Trains an image classifier from balanced TFRecord shards: `imageshards train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from imageshards.commands import command_line
from trainer.cluster.addresses import find_cluster
from trainer.cluster.hosts import Ended, Hosts
from trainer.cluster.rendezvous import joined
from trainer.commands import console
from trainer.commands.flags import make_parser, parse_config
from trainer.config import RunConfig
from trainer.imports import quiet_import
from trainer.reader.batches import open_data
from trainer.training.several_hosts import described, only_chief_writes
from trainer.training.signals import Stopped, stopped_by_sigterm

__all__ = ["main", "make_parser"]

PROGRAM = "imageshards train"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the trainer.

    Args:
        argv: Command line without the program's name; None for `sys.argv`.

    Returns:
        0, or 2 for a user's mistake, 130 after Ctrl-C, 143 after SIGTERM, 1 where another host is
        lost; after the latter three run the same command again to resume.
    """
    interrupted = "stopped; run the same command again"
    return console.run(PROGRAM, lambda: _train(argv), interrupted)


def _train(argv: Sequence[str] | None) -> int:
    config = parse_config(argv)
    command_line.check_installed("keras")
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
            _train_on(mine, hosts)
    except Stopped as e:
        print(f"{PROGRAM}: {e}", file=sys.stderr)
        return e.exit_code
    except Ended as e:
        print(f"{PROGRAM}: {e}", file=sys.stderr, flush=True)
        # Else TensorFlow would wait for minutes for hosts that are gone.
        os._exit(e.exit_code)
    return 0


def _train_on(config: RunConfig, hosts: Hosts) -> None:
    if hosts.count > 1:
        hosts.compare(described(config))
    # Before TensorFlow's import, which takes seconds, so that mistakes are reported at once.
    data = open_data(config.read, output=config.output)
    with quiet_import():
        from trainer.training.run import train
    train(config, *data, hosts)


if __name__ == "__main__":
    sys.exit(main())
