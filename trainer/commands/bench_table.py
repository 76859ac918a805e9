"""What the speeds of the reader's stages say: the table, the bottleneck, the sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.progress import text_table

# With fewer cores at work than this share, something else than the CPU holds the reader up.
IDLE_SHARE = 0.75
_COLUMNS = ("images_per_second", "cpu_microseconds", "added_cpu_microseconds")


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a pipeline is.

    Attributes:
        images_per_sec: By the clock.
        cpu_usec: CPU time of all threads per image, in microseconds.
    """

    images_per_sec: float
    cpu_usec: float

    @property
    def usec(self) -> float:
        """Microseconds per image by the clock."""
        return 1e6 / self.images_per_sec

    @property
    def busy_cores(self) -> float:
        """Cores that are at work, on average."""
        return self.cpu_usec * self.images_per_sec / 1e6


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


def figures_of(speeds: Mapping[str, Speed], limit: Speed) -> dict[str, Any]:
    """What the speeds of the stages, and of decoding from memory, come to: JSON values."""
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
        f"decode limit: {figures['decode_limit_images_per_second']:,.0f} images/s (the same "
        "pictures from bytes in memory), of which the reader reaches "
        f"{figures['ratio_to_limit']:.2f}",
        verdict(figures),
        f"memory, estimated: {_megabytes(sum(memory.values()))} MB ({parts})",
    ])  # fmt: skip


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f}"
