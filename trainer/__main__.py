"""Trains an image classifier from balanced TFRecord shards: `python -m trainer`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.commands import console
from trainer.commands.flags import parse_config
from trainer.dataset.open import open_inputs
from trainer.imports import quiet_import
from trainer.training.output_folder import prepare_output

PROGRAM = "python -m trainer"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the trainer.

    Args:
        argv: Command line without the program's name; None for `sys.argv`.

    Returns:
        0, or 2 for a user's mistake, 130 after Ctrl-C, 143 after SIGTERM; after the latter
        two run the same command again to resume.
    """
    interrupted = "stopped; run the same command again to resume"
    return console.run(PROGRAM, lambda: _train(argv), interrupted)


def _train(argv: Sequence[str] | None) -> int:
    config = parse_config(argv)
    devices = None
    if config.data.where:
        # Counting filtered records uses TensorFlow, whose devices must be set up before that.
        with quiet_import():
            from trainer.models.strategy import make_strategy
        devices = make_strategy(config.replicas, config.batch_size)
    # Before TensorFlow's import, which takes seconds, so that mistakes are reported at once.
    inputs = open_inputs(config)
    prepare_output(config.output)
    with quiet_import():
        from trainer.training.run import train
        from trainer.training.signals import Stopped
    try:
        train(config, inputs, devices)
    except Stopped as e:
        print(f"{PROGRAM}: {e}: saved; run the same command again to resume.", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
