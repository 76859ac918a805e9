"""The parts of the report, each from what the manifest says."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipeline.report.sheets import Thumb, to_jpeg
from imageshards.page.charts import figure, histogram, strip
from imageshards.page.html import (
    Markup,
    escape,
    number,
    paragraph,
    plural,
    share,
    size,
    table,
)

# With more classes than this, only the largest and the smallest have a row of their own.
MAX_CLASS_ROWS = 40
ENDS = 12

SHARD_BY = {"balanced": "same class mix in each", "class": "one class in each"}
NOTES = {
    "exif_rotated": "turned upright as their EXIF orientation says",
    "not_jpeg": "of another format than JPEG, re-encoded",
    "cmyk": "CMYK, converted",
    "grey": "grey-scale",
    "palette": "with a palette, expanded",
    "alpha": "transparent, laid over the background",
    "sixteen_bit": "16 bits per channel, reduced to 8",
    "animated": "animated, first frame taken",
    "icc_profile_dropped": "with an ICC colour profile, dropped",
    "progressive": "progressive JPEG",
    "enlarged": "smaller than the wanted size, enlarged",
}


def totals(manifest: Mapping[str, Any]) -> tuple[int, int, int]:
    """Records, shards and bytes of all splits."""
    shards = [s for split in manifest["splits"].values() for s in split["shards"]]
    return sum(s["num_records"] for s in shards), len(shards), sum(s["num_bytes"] for s in shards)


def class_counts(manifest: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Split → class, in label order → records."""
    counts = {}
    for name, split in manifest["splits"].items():
        counts[name] = dict.fromkeys(manifest["classes"], 0)
        for shard in split["shards"]:
            for label, count in shard["classes"].items():
                counts[name][label] = counts[name].get(label, 0) + count
    return counts


def header(title: str, manifest: Mapping[str, Any], parts: Mapping[str, str]) -> Markup:
    """Title, links to the parts and the few numbers one looks for first."""
    records, shards, size_bytes = totals(manifest)
    rejected = sum(manifest["rejects"].values())
    mean = f"{size(size_bytes / records)} each" if records else ""
    tiles = (
        ("Images", number(records), f"of {number(manifest['listed'])} listed"),
        ("Classes", number(len(manifest["classes"])), ""),
        ("Splits", number(len(manifest["splits"])), ", ".join(manifest["splits"])),
        ("Shards", number(shards), SHARD_BY.get(manifest.get("shard_by", ""), "")),
        ("Size", size(size_bytes), mean),
        ("Rejected", number(rejected), share(rejected, manifest["listed"])),
    )
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{escape(more)}</small></dd></div>\n"
        for name, value, more in tiles
    )
    links = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text in parts.items())
    return Markup(
        f'<header>\n<h1>{escape(title)}</h1>\n<nav aria-label="Parts of this page">{links}</nav>\n'
        f'<dl class="tiles">\n{cells}</dl>\n</header>\n'
    )


def splits_table(manifest: Mapping[str, Any]) -> Markup:
    """One row per split."""
    rows = []
    even = True
    for name, split in manifest["splits"].items():
        counts = [shard["num_records"] for shard in split["shards"]] or [0]
        size_bytes = sum(shard["num_bytes"] for shard in split["shards"])
        numbers = (split["num_records"], len(split["shards"]), min(counts), max(counts))
        mean_bytes = size_bytes / max(len(split["shards"]), 1)
        rows.append((name, *map(number, numbers), size(size_bytes), size(mean_bytes)))
        even = even and max(counts) - min(counts) <= 1
    head = ("Split", "Records", "Shards", "Fewest per shard", "Most", "Bytes", "Mean shard")
    caption = "The shards of a split differ by at most one record." if even else ""
    return table(caption or "Records per split.", head, rows, range(1, 7))


def contact_sheet(split: str, thumbs: Sequence[Thumb], missing: int, file: str) -> Markup:
    """The pictures of one split; names are text, so they can be searched and read aloud."""
    items = "\n".join(
        f'<li><img width="{t.picture.width}" height="{t.picture.height}" loading="lazy" '
        f'alt="{escape(t.label)}: {escape(t.key)}" title="{escape(t.key)}" '
        f'src="data:image/jpeg;base64,{base64.b64encode(to_jpeg(t.picture)).decode("ascii")}">'
        f'<span title="{escape(t.label)}">{escape(t.label)}</span></li>'
        for t in thumbs
    )
    sheet = (
        f"<p>{plural(len(thumbs), 'record')} from the start of evenly spaced shards, as stored. "
        f'Also as <a href="{escape(file)}">{escape(file)}</a>.</p>\n'
        f'<ul class="sheet">\n{items}\n</ul>\n'
    )
    warning = ""
    if missing:
        warning = (
            f'<p class="warn">{plural(missing, "picture")} of the sample could not be read; '
            "<code>python -m beam_pipeline.verify</code> says why.</p>\n"
        )
    return Markup(f"<h3>{escape(split)}</h3>\n{sheet if thumbs else ''}{warning}")


def classes_part(manifest: Mapping[str, Any]) -> Markup:
    """Records per class and split: all classes, or the ends of a long list."""
    counts = class_counts(manifest)
    sums = {
        name: sum(split.get(name, 0) for split in counts.values()) for name in manifest["classes"]
    }
    if not sums:
        return Markup("")
    most, least = max(sums.values()), min(sums.values())
    said = f"The largest class has {number(most)} records, the smallest {number(least)}."
    if most == least:
        said = "All classes have the same number of records."
    names = list(sums)
    if len(names) <= MAX_CLASS_ROWS:
        return Markup(paragraph(said) + _class_table("In label order.", names, counts))
    ordered = sorted(names, key=lambda name: (-sums[name], name))
    charts = "".join(
        figure(
            f"{split}: records per class, largest first",
            f"{min(of_class.values()):,} to {max(of_class.values()):,} records",
            strip(
                sorted(of_class.values(), reverse=True),
                "rank",
                f"Records of the {len(of_class)} classes of {split}, largest first.",
                ends=("largest", "smallest"),
            ),
        )
        for split, of_class in counts.items()
    )
    return Markup(
        paragraph(said)
        + f'<div class="charts pairs">\n{charts}</div>\n'
        + _class_table(f"The {ENDS} largest classes.", ordered[:ENDS], counts)
        + _class_table(f"The {ENDS} smallest classes.", ordered[-ENDS:], counts)
    )


def _class_table(
    caption: str, names: Sequence[str], counts: Mapping[str, Mapping[str, int]]
) -> Markup:
    tops = {split: max(of_class.values(), default=0) for split, of_class in counts.items()}

    def bar(split: str, name: str) -> Markup:
        count = counts[split].get(name, 0)
        width = 100 * count / tops[split] if tops[split] else 0
        return Markup(
            f'<span class="bar"><i><b style="width:{width:.1f}%"></b></i>'
            f'<span class="number">{number(count)}</span></span>'
        )

    rows = [(name, *(bar(split, name) for split in counts)) for name in names]
    made = table(caption, ("Class", *counts), rows)
    return Markup(made.replace("<table>", '<table class="bars">', 1))


def sources_part(manifest: Mapping[str, Any]) -> Markup:
    """Sizes of the originals and records, their formats and what was normalised."""
    charts = ""
    for name, title, unit in (
        ("source_width_px", "Width of the originals, px", number),
        ("source_height_px", "Height of the originals, px", number),
        ("record_bytes", "Bytes per record", size),
    ):
        bins = manifest.get("histograms", {}).get(name)
        if bins and any(bins["counts"]):
            subtitle = plural(sum(bins["counts"]), "image")
            svg = histogram(bins["edges"], bins["counts"], f"Histogram: {title}.", unit)
            charts += figure(title, subtitle, svg)
    source = manifest.get("source", {})
    records = totals(manifest)[0]
    notes = [
        (NOTES.get(code, code.replace("_", " ")), number(count), share(count, records))
        for code, count in source.get("notes", {}).items()
    ]
    formats = [
        (name, number(count), share(count, records))
        for name, count in source.get("formats", {}).items()
    ]
    skipped = [
        (code.replace("_", " "), number(count))
        for code, count in manifest.get("skipped", {}).items()
        if count
    ]
    counted = (1, 2)
    return Markup(
        (f'<div class="charts">\n{charts}</div>\n' if charts else "")
        + (table("Formats found", ("Format", "Images", "Share"), formats, counted) * bool(formats))
        + (table("What was normalised", ("Images", "Count", "Share"), notes, counted) * bool(notes))
        + (table("Files passed over", ("Why", "Files"), skipped, (1,)) * bool(skipped))
    )


def shards_part(manifest: Mapping[str, Any]) -> Markup:
    """How even the shards are, in records and in bytes."""
    charts = ""
    for name, split in manifest["splits"].items():
        for key, what, unit in (("num_records", "records", number), ("num_bytes", "bytes", size)):
            values = [shard[key] for shard in split["shards"]]
            if not values:
                continue
            low, high = min(values), max(values)
            spread = f"{unit(low)} to {unit(high)}" if low != high else f"{unit(low)} each"
            text = f"{name}: {what} per shard, {spread}, {plural(len(values), 'shard')}."
            svg = strip(values, "shard", text, unit)
            charts += figure(f"{name}: {what} per shard", spread, svg)
    return Markup(f'<div class="charts pairs">\n{charts}</div>\n' if charts else "")


def rejects_part(
    manifest: Mapping[str, Any], examples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Markup:
    """Reasons with counts and a few examples."""
    rejects = manifest["rejects"]
    if not rejects:
        return paragraph("No image was rejected.")
    rows = []
    for reason, count in rejects.items():
        items = "".join(
            f"<li><code>{escape(r.get('key', '?'))}</code> – {escape(r.get('message', ''))}</li>"
            for r in examples.get(reason, ())
        )
        rows.append((reason, number(count), Markup(f"<ul>{items}</ul>")))
    caption = "Kept in quarantine/, listed in quarantine/rejects.jsonl."
    return table(caption, ("Reason", "Images", "For example"), rows, (1,))


def made_part(manifest: Mapping[str, Any]) -> Markup:
    """Options and versions, as the manifest has them."""

    def rows(values: Mapping[str, Any]) -> list[tuple[str, Markup]]:
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in values.items()
        }
        return [(key, Markup(f"<code>{escape(text)}</code>")) for key, text in texts.items()]

    options = manifest.get("options", {})
    more = table("Options of the build", ("Option", "Value"), rows(options)) if options else ""
    origin = {
        "format_version": manifest["format_version"],
        "fingerprint": manifest["fingerprint"],
        "compression": manifest.get("compression", "none"),
        **manifest.get("versions", {}),
    }
    return Markup(
        table("The pictures in the records", ("Setting", "Value"), rows(manifest["image"]))
        + table("Versions and fingerprint", ("What", "Value"), rows(origin))
        + (f"<details><summary>All options</summary>\n{more}</details>\n" if more else "")
    )
