"""How fast a data set can be read, and where the time goes: `python -m trainer.bench_input`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer import augment, cli
from trainer.command_line import train_config
from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.flags import DATA, FOREIGN, TRAINING, add_flags
from trainer.inputs import Inputs, cpu_count, open_inputs

if TYPE_CHECKING:
    from trainer.bench_stages import Speed

PROGRAM = "python -m trainer.bench_input"
SECONDS = 5.0
# With fewer cores at work than this share, something else than the CPU holds the reader up.
IDLE_SHARE = 0.75

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
    return cli.run(PROGRAM, lambda: _bench(_parse(argv)))


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: the reader up to a stage.

    Attributes:
        stage: Its name.
        images_per_sec: By the clock, of the reader up to here.
        cpu_usec: CPU time of all threads per image, of the reader up to here.
        added_cpu_usec: More than one line above.
        added_usec: The same by the clock.
    """

    stage: str
    images_per_sec: float
    cpu_usec: float
    added_cpu_usec: float
    added_usec: float


def table(speeds: Mapping[str, Speed]) -> list[Row]:
    """Speeds of the reader up to each stage, in their order → rows."""
    rows, cpu_usec, usec = [], 0.0, 0.0
    for stage, speed in speeds.items():
        added = speed.cpu_usec - cpu_usec, speed.usec - usec
        rows.append(Row(stage, speed.images_per_sec, speed.cpu_usec, *added))
        cpu_usec, usec = speed.cpu_usec, speed.usec
    return rows


def bottleneck(rows: Sequence[Row]) -> tuple[str, float]:
    """The stage that adds most of the time an image takes, and its share of it.

    Where the crop is fused with decoding, `augment` can add less than nothing: then decoding
    is only charged with what is left.
    """
    added: dict[str, float] = {}
    for row in rows:
        added[row.stage] = max(0.0, row.added_usec)
        if row.added_usec < 0 and row.stage == "augment":
            added["decode"] = max(0.0, added["decode"] + row.added_usec)
    stage = max(added, key=lambda name: added[name])
    return stage, added[stage] / (sum(added.values()) or 1.0)


def verdict(figures: Mapping[str, Any]) -> str:
    """What would have to be faster, in a sentence."""
    cores = min(figures["cores"], figures["threads"])
    busy = f"{figures['busy_cores']:.1f} of {cores} cores at work"
    share = f"{figures['bottleneck_share']:.0%} of the time per image"
    if figures["busy_cores"] < IDLE_SHARE * cores:
        return (
            f"bottleneck: {figures['bottleneck']}, {share}; with only {busy} the reader waited "
            "for storage, or for other programs"
        )
    return f"bottleneck: {figures['bottleneck']}, {share}, with {busy}"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = cli.Parser(
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
    add_flags(parser, DATA, [*names, "fast_order", "threads"])
    add_flags(parser, FOREIGN, ["feature_map", "label_offset", "class_names"])
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
    given = vars(args)
    config = train_config(given)
    augment.check(config.augment, config.batch_size, 1, _mixes(config))
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
    """
    with cli.quiet_import():
        from trainer import bench_stages, strategy
        from trainer.data import PREFETCH_BATCHES, memory_bytes
    selected, reading = inputs.training, inputs.reading
    place = augment.resolve_place(config.augment_on, strategy.gpu_count())
    augmentation = augment.make(
        config.augment,
        place,
        image=inputs.dataset.image,
        size=inputs.model.size,
        seed=config.seed,
        num_classes=len(selected.classes),
        mix=_mixes(config),
    )
    shipped = dataclasses.replace(inputs.model, size=augmentation.reader_size)
    streams = bench_stages.stage_streams(
        selected, reading, config.seed, config.batch_size, shipped, augmentation
    )
    settle_batches = PREFETCH_BATCHES + reading.threads + 1
    speeds = bench_stages.measure(streams, config.batch_size, settle_batches, seconds)
    limit = speeds.pop(bench_stages.LIMIT)
    return _figures(speeds, limit) | {
        "memory_bytes": dict(memory_bytes(selected, reading, config.batch_size, shipped)),
        "data": config.data.data,
        "split": selected.split.name,
        "records": selected.num_records,
        "batch_size": config.batch_size,
        "pictures": [*shipped.size, inputs.dataset.image.channels],
        "augment": config.augment,
        "augment_on": place,
        "fast_order": reading.fast_order,
        "threads": reading.threads,
        "cores": cpu_count(),
    }


def _figures(speeds: Mapping[str, Speed], limit: Speed) -> dict[str, Any]:
    rows = table(speeds)
    stage, share = bottleneck(rows)
    whole = speeds[rows[-1].stage]
    return {
        "stages": [
            {
                "stage": row.stage,
                "images_per_second": round(row.images_per_sec, 1),
                "cpu_microseconds": round(row.cpu_usec, 1),
                "added_cpu_microseconds": round(row.added_cpu_usec, 1),
            }
            for row in rows
        ],
        "images_per_second": round(whole.images_per_sec, 1),
        "decode_limit_images_per_second": round(limit.images_per_sec, 1),
        "ratio_to_limit": round(whole.images_per_sec / limit.images_per_sec, 4),
        "bottleneck": stage,
        "bottleneck_share": round(share, 4),
        "busy_cores": round(whole.busy_cores, 2),
    }


def text(figures: Mapping[str, Any]) -> str:
    """The figures as people read them."""
    height_px, width_px, channels = figures["pictures"]
    where = f" on the {figures['augment_on']}" if figures["augment"] != "none" else ""
    order = "fast order" if figures["fast_order"] else "reproducible order"
    lines = [
        f"{figures['data']}, split {figures['split']}: {figures['records']:,} records, batches of "
        f"{figures['batch_size']}, pictures of {height_px}x{width_px}x{channels} px, augmentation "
        f"{figures['augment']}{where}, {order}, {figures['threads']} threads",
        "",
        "reader up to  images/s  CPU us/image  of them here",
    ]
    for row in figures["stages"]:
        lines.append(
            f"{row['stage']:<12}  {row['images_per_second']:>8,.0f}  "
            f"{row['cpu_microseconds']:>12,.0f}  {row['added_cpu_microseconds']:>12,.0f}"
        )
    memory = {name: size for name, size in figures["memory_bytes"].items() if size}
    parts = ", ".join(f"{name} {_megabytes(size)}" for name, size in memory.items())
    return "\n".join([
        *lines,
        "",
        f"whole reader: {figures['images_per_second']:,.0f} images/s",
        f"decode limit: {figures['decode_limit_images_per_second']:,.0f} images/s (the same "
        "pictures from bytes in memory), of which the reader reaches "
        f"{figures['ratio_to_limit']:.2f}",
        verdict(figures),
        f"memory, estimated: {_megabytes(sum(memory.values()))} MB ({parts})",
    ])  # fmt: skip


def _mixes(config: TrainConfig) -> bool:
    """Whether pairs of pictures may be mixed: see `augment.make`."""
    return tuple(config.data.inputs) == ("image",)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
