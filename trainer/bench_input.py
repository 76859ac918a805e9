"""How fast a data set can be read, and where the time goes: `python -m trainer.bench_input`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.augment.augmentation import (
    check_pairs,
    make_augmentation,
    resolve_augment_on,
)
from trainer.commands import console
from trainer.commands.bench_table import figures_of, text
from trainer.commands.command_line import train_config
from trainer.commands.flags import DATA, EXTERNAL, TRAINING, add_flags
from trainer.config import TrainConfig
from trainer.dataset.manifest import find_split
from trainer.dataset.open import Inputs, cpu_count, open_dataset, open_inputs
from trainer.imports import quiet_import

PROGRAM = "python -m trainer.bench_input"
SECONDS = 5.0

_EPILOG = (
    "Each row of the table is the reader built up to that stage: read (shards, shuffled), parse, "
    "decode, augment (on the host; the crop is part of decoding there, so a row may be faster "
    "than the one above it), batch (labels, weights, mixing: the whole reader). The decode limit "
    "is the same pictures made from bytes that are in memory already, on all threads. Endless "
    "iterators, warmed up, measured in turn, medians. The JSON object: stages (stage, "
    "images_per_second, cpu_microseconds, added_cpu_microseconds), images_per_second, "
    "decode_limit_images_per_second, ratio_to_limit, bottleneck, bottleneck_share, busy_cores, "
    "memory_bytes (an estimate), and what was measured."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Command line without the program's name; None for `sys.argv`.

    Returns:
        0, or 2 for a user's mistake, 130 after Ctrl-C.
    """
    return console.run(PROGRAM, lambda: _bench(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = console.Parser(
        prog=PROGRAM,
        description="Measures how fast a data set can be read, stage by stage; trains nothing.",
        allow_abbrev=False,
        epilog=_EPILOG,
    )
    add_flags(parser, DATA, ["data"])
    parser.add_argument(
        "--split", metavar="NAME", help="split to read (default: train or training)"
    )
    add_flags(parser, TRAINING, ["batch_size"])
    add_flags(parser, DATA, ["image_size"])
    add_flags(parser, TRAINING, ["augment", "augment_on", "seed"])
    names = ["classes", "where", "balance", "inputs", "sequences", "sequence_length"]
    add_flags(parser, DATA, [*names, "cache_folder", "fast_order", "threads"])
    add_flags(parser, EXTERNAL, ["feature_map", "label_offset", "class_names"])
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        default=SECONDS,
        help=f"how long each stage is measured, in all (default: {SECONDS:g})",
    )
    parser.add_argument("--json", action="store_true", help="prints one JSON object instead")
    args = parser.parse(argv)
    if not (math.isfinite(args.seconds) and args.seconds > 0):
        raise UserError(f"--seconds received {args.seconds}; expected a number above 0.")
    return args


def _bench(args: argparse.Namespace) -> int:
    config = train_config(vars(args))
    check_pairs(config.augment, config.batch_size, 1, _mixes(config))
    if args.split:
        find_split(open_dataset(config.data), "--split", args.split)
    data = dataclasses.replace(config.data, train_split=args.split, validation_split="none")
    config = dataclasses.replace(config, data=data, output="")
    inputs = open_inputs(config)
    figures = measured(config, inputs, args.seconds)
    print(json.dumps(figures, allow_nan=False) if args.json else text(figures))
    return 0


def measured(config: TrainConfig, inputs: Inputs, seconds: float) -> dict[str, Any]:
    """Measures the reader that `python -m trainer` would use.

    Args:
        config: The training run.
        inputs: Its data.
        seconds: How long each stage is measured.

    Returns:
        The figures, as JSON values.

    Raises:
        UserError: A record cannot be read.
    """
    with quiet_import():
        import tensorflow as tf

        from trainer.commands import bench_stages
        from trainer.models import strategy
        from trainer.reader import broken_records
        from trainer.reader.pipeline import PREFETCH_BATCHES, memory_bytes
    subset, read_options = inputs.training, inputs.read_options
    augment_on = resolve_augment_on(config.augment_on, strategy.gpu_count())
    augmentation = make_augmentation(
        config.augment,
        augment_on,
        image=inputs.dataset.image,
        size=inputs.model.size,
        seed=config.seed,
        num_classes=len(subset.classes),
        mix=_mixes(config),
    )
    shipped = dataclasses.replace(inputs.model, size=augmentation.reader_size)
    settle_batches = PREFETCH_BATCHES + read_options.threads + 1
    try:
        streams = bench_stages.stage_streams(
            subset, read_options, config.seed, config.batch_size, shipped, augmentation
        )
        speeds = bench_stages.measure(streams, config.batch_size, settle_batches, seconds)
    except tf.errors.OpError as e:
        raise broken_records.explain(
            e, subset, broken_records.find(subset, None, framing=True)
        ) from e
    limit = speeds.pop(bench_stages.LIMIT)
    return figures_of(speeds, limit) | {
        "memory_bytes": dict(memory_bytes(subset, read_options, config.batch_size, shipped)),
        "data": config.data.data,
        "split": subset.split.name,
        "records": subset.num_records,
        "batch_size": config.batch_size,
        "pictures": [*shipped.size, inputs.dataset.image.channels],
        "augment": config.augment,
        "augment_on": augment_on,
        "fast_order": read_options.fast_order,
        "threads": read_options.threads,
        "cores": cpu_count(),
    }


def _mixes(config: TrainConfig) -> bool:
    """Whether pairs of pictures may be mixed: see `make_augmentation`."""
    return tuple(config.data.inputs) == ("image",)


if __name__ == "__main__":
    sys.exit(main())
