"""How fast a data set can be read, and where the time goes: `imageshards bench`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.commands.command_line import Parser
from imageshards.errors import UserError
from imageshards.progress import text_table
from imageshards.text import counted, wrapped
from trainer.augment.augmentation import check_pairs, resolve_augment_on
from trainer.commands import console
from trainer.commands.flags import DATA, EXTERNAL, TRAINING, add_flags, train_config
from trainer.config import TrainConfig
from trainer.dataset.manifest import find_split
from trainer.dataset.open import Inputs, cpu_count, open_dataset, open_inputs
from trainer.imports import quiet_import
from trainer.reader.batches import TrainingData

if TYPE_CHECKING:
    from trainer.commands.bench_stages import Speed

PROGRAM = "imageshards bench"
SECONDS = 5.0
# With fewer cores at work than this share, something else than the CPU limits the reader.
IDLE_SHARE = 0.75
_COLUMNS = ("images_per_second", "cpu_microseconds", "added_cpu_microseconds")

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


def make_parser() -> Parser:
    """The parser of `imageshards bench`."""
    parser = Parser(
        prog=PROGRAM,
        description="Measures how fast a data set can be read, stage by stage; trains nothing.",
        epilog=_EPILOG,
    )
    add_flags(parser, DATA, ["data", "mix"])
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
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    args: argparse.Namespace = make_parser().parse_args(argv)
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
    print(json.dumps(figures, allow_nan=False) if args.json else figures_text(figures))
    return 0


def measured(config: TrainConfig, inputs: Inputs, seconds: float) -> dict[str, Any]:
    """Measures the reader that `imageshards train` would use.

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
        from trainer.reader.broken_records import explain
        from trainer.reader.find_broken import find_broken
        from trainer.reader.pipeline import PREFETCH_BATCHES, memory_bytes
    subset, read_options = inputs.training, inputs.read_options
    augment_on = resolve_augment_on(config.augment_on, strategy.gpu_count())
    augmentation = TrainingData.of(config, inputs, augment_on).augmentation
    shipped = dataclasses.replace(inputs.model, size=augmentation.reader_size)
    settle_batches = PREFETCH_BATCHES + read_options.threads + 1
    try:
        streams = bench_stages.stage_streams(
            subset, read_options, config.seed, config.batch_size, shipped, augmentation
        )
        speeds = bench_stages.measure(streams, config.batch_size, settle_batches, seconds)
    except tf.errors.OpError as e:
        raise explain(e, subset, find_broken(subset)) from e
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


def figures_of(speeds: Mapping[str, Speed], limit: Speed) -> dict[str, Any]:
    """The figures as JSON values.

    Args:
        speeds: Of the reader up to each stage, in their order.
        limit: Of decoding from memory.
    """
    stages, cpu_usec = [], 0.0
    for stage, speed in speeds.items():
        stages.append({
            "stage": stage,
            "images_per_second": round(speed.images_per_sec, 1),
            "cpu_microseconds": round(speed.cpu_usec, 1),
            "added_cpu_microseconds": round(speed.cpu_usec - cpu_usec, 1),
        })  # fmt: skip
        cpu_usec = speed.cpu_usec
    slowest, share = bottleneck(speeds)
    whole = list(speeds.values())[-1]
    return {
        "stages": stages,
        "images_per_second": round(whole.images_per_sec, 1),
        "decode_limit_images_per_second": round(limit.images_per_sec, 1),
        "ratio_to_limit": round(whole.images_per_sec / limit.images_per_sec, 4),
        "bottleneck": slowest,
        "bottleneck_share": round(share, 4),
        "busy_cores": round(whole.busy_cores, 2),
    }


def bottleneck(speeds: Mapping[str, Speed]) -> tuple[str, float]:
    """The stage that adds most of the time an image takes, and its share of that time.

    The crop is fused with decoding, so `augment` can be faster than `decode` alone: then decoding
    counts only what is left.
    """
    added: dict[str, float] = {}
    before_usec = 0.0
    for stage, speed in speeds.items():
        change_usec = speed.usec - before_usec
        added[stage] = max(0.0, change_usec)
        if change_usec < 0 and stage == "augment":
            added["decode"] = max(0.0, added["decode"] + change_usec)
        before_usec = speed.usec
    slowest = max(added, key=lambda name: added[name])
    return slowest, added[slowest] / (sum(added.values()) or 1.0)


def bottleneck_sentence(figures: Mapping[str, Any]) -> str:
    """What would have to be faster."""
    cores = min(figures["cores"], figures["threads"])
    busy = f"{figures['busy_cores']:.1f} of {cores} cores at work"
    share = f"{figures['bottleneck_share']:.0%} of the time per image"
    if figures["busy_cores"] < IDLE_SHARE * cores:
        return (
            f"bottleneck: {figures['bottleneck']}, {share}; with only {busy} the reader waited "
            "for storage, or for other programs"
        )
    return f"bottleneck: {figures['bottleneck']}, {share}, with {busy}"


def figures_text(figures: Mapping[str, Any]) -> str:
    """The figures as they are printed."""
    height_px, width_px, channels = figures["pictures"]
    where = f" on the {figures['augment_on']}" if figures["augment"] != "none" else ""
    order = "fast order" if figures["fast_order"] else "reproducible order"
    lines = [
        f"{figures['data']}, split {figures['split']}: {counted(figures['records'], 'record')}, "
        f"batches of {figures['batch_size']},",
        f"pictures of {height_px}x{width_px}x{channels} px, augmentation "
        f"{figures['augment']}{where}, {order}, {counted(figures['threads'], 'thread')}",
        "",
        text_table(
            ["reader up to", "images/s", "CPU us/image", "of them here"],
            [[row["stage"], *(f"{row[c]:,.0f}" for c in _COLUMNS)] for row in figures["stages"]],
        ),
    ]
    memory = {name: size for name, size in figures["memory_bytes"].items() if size}
    parts = ", ".join(f"{name} {_megabytes(size)}" for name, size in memory.items())
    return "\n".join([
        *lines,
        "",
        f"whole reader: {figures['images_per_second']:,.0f} images/s",
        wrapped(
            f"decode limit: {figures['decode_limit_images_per_second']:,.0f} images/s (the same "
            "pictures from bytes in memory), of which the reader reaches "
            f"{figures['ratio_to_limit']:.2f}"
        ),
        wrapped(bottleneck_sentence(figures)),
        wrapped(f"memory, estimated: {_megabytes(sum(memory.values()))} MB ({parts})"),
    ])  # fmt: skip


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f}"


def _mixes(config: TrainConfig) -> bool:
    """Whether pairs of pictures may be mixed: see `trainer.augment.augmentation`."""
    return tuple(config.data.inputs) == ("image",)


if __name__ == "__main__":
    sys.exit(main())
