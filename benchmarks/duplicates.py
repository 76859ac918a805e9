"""How many planted copies `imageshards duplicates` finds, and what it takes."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps

from beam_pipeline.duplicates.near import count_bits, near_pairs
from benchmarks.cases import Settings
from benchmarks.measure import remove, run_module
from benchmarks.outcome import Figure, Outcome
from imageshards.index import IndexRows, index_table, read_index, write_index
from imageshards.manifest import RECORD_FEATURES, load_manifest, write_manifest

DISTANCES = (0, 2, 4, 6, 8, 10)
_SYNTHETIC_SHARDS = 64


def _cropped(picture: Image.Image, share: float) -> Image.Image:
    x, y = (round(side * share / 2) for side in picture.size)
    return picture.crop((x, y, picture.width - x, picture.height - y))


CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], int]] = {
    "resized to 50 %": (lambda p: p.resize((max(1, p.width // 2), max(1, p.height // 2))), 90),
    "quality 30": (lambda p: p, 30),
    "cropped by 2 %": (lambda p: _cropped(p, 0.02), 90),
    "cropped by 5 %": (lambda p: _cropped(p, 0.05), 90),
    "mirrored": (ImageOps.mirror, 90),
}


def _planted(s: Settings) -> tuple[pathlib.Path, int]:
    """A list of all photos and of changed copies of every third, and how many of those."""
    photos = [*s.sources, *s.pets] if s.pets != s.sources else s.sources
    folder = s.work / "planted"
    folder.mkdir(exist_ok=True)
    rows, copied = [], photos[::3]
    for number, path in enumerate(photos):
        rows.append({"image": str(path), "key": f"{number}/original", "label": "photo"})
    for number, path in enumerate(photos):
        if number % 3:
            continue
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
        for name, (change, quality) in CHANGES.items():
            target = folder / f"{number}-{name.replace(' ', '_')}.jpg"
            if not target.exists():
                change(picture).save(target, "JPEG", quality=quality)
            rows.append({"image": str(target), "key": f"{number}/{name}", "label": "photo"})
    path = s.work / "planted.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path, len(copied)


def duplicates(s: Settings) -> Outcome:
    """Planted copies that are found, and pairs of unrelated photos, by distance."""
    path, copies = _planted(s)
    remove(s.output)
    run_module(
        "beam_pipeline", "--input", path, "--output", s.output, "--image_size", 256,
        "--allow_one_class", "--no_report", "--num_shards", 4, log=s.log,
    )  # fmt: skip
    manifest = load_manifest(str(s.output))
    table = read_index(str(s.output), manifest, columns=["key", "dhash"])
    remove(s.output)
    hashes = dict(zip(table["key"].to_pylist(), table["dhash"].to_pylist(), strict=True))
    keys = collections.defaultdict(list)
    for key, value in hashes.items():
        keys[value].append(key)
    distinct = np.array(sorted(keys), np.uint64)
    pairs = near_pairs(distinct, DISTANCES[-1])
    rows: dict[str, tuple[float, ...]] = {}
    for name in CHANGES:
        apart = [
            (hashes[f"{key.partition('/')[0]}/original"] ^ value).bit_count()
            for key, value in hashes.items()
            if key.endswith(f"/{name}")
        ]
        rows[name] = tuple(100 * sum(d <= most for d in apart) / copies for most in DISTANCES)
    rows["unrelated photos, pairs"] = tuple(
        float(len(_unrelated(pairs, keys, most))) for most in DISTANCES
    )
    found = rows["quality 30"][DISTANCES.index(4)]
    return Outcome(
        "duplicates",
        f"{len(hashes):,} pictures, {copies:,} of each kind planted: % found, by distance",
        tuple(f"<= {most}" for most in DISTANCES),
        rows,
        (Figure("% of copies at quality 30 found at distance 4", (found,), 95),),
        ("a mirrored picture has another hash: such copies are not found",),
    )


def _unrelated(pairs: np.ndarray, keys: dict[int, list[str]], most: int) -> set[tuple[str, ...]]:
    """Pairs of originals of different photos that are at most so far apart."""
    near = pairs[count_bits(pairs["low"] ^ pairs["high"]) <= most].tolist()
    groups = [*((low, high) for low, high in near), *((one, one) for one in keys)]
    found = set()
    for one, other in groups:
        found |= {
            tuple(sorted((a, b)))
            for a in keys[one]
            for b in keys[other]
            if a != b and a.endswith("/original") and b.endswith("/original")
        }
    return found


def duplicates_of_millions(s: Settings) -> Outcome:
    """Time and memory of the whole command on an index of random hashes with planted twins."""
    directory = s.work / f"index-of-{s.listed}"
    _write_random_index(directory, s.listed)
    rows: dict[str, tuple[float, ...]] = {}
    for distance in (0, 4, 6):
        usage = run_module(
            "beam_pipeline.duplicates", directory, "--distance", distance,
            log=s.log, memory=True,
        )  # fmt: skip
        found = json.loads((directory / "duplicates" / "duplicates.json").read_text())
        peak = usage.peak_rss_bytes / 1e9
        rows[f"distance {distance}"] = (
            usage.seconds, usage.cpu_seconds, peak, float(found["exact"]), float(found["near"]),
        )  # fmt: skip
    remove(directory)
    return Outcome(
        "duplicates_of_millions",
        f"{s.listed:,} random hashes; 1 % planted as equal files, 1 % with 3 other bits, and one "
        "hash for 2 %",
        ("seconds", "CPU s", "peak GB", "exact", "near"),
        rows,
        (Figure("GB at distance 4", (rows["distance 4"][2],), 4, at_least=False),),
    )


def _write_random_index(directory: pathlib.Path, count: int) -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, count, dtype=np.uint64)
    originals = np.arange(count)
    hundredth = count // 100
    near, equal = np.arange(hundredth), np.arange(hundredth, 2 * hundredth)
    hashes[near + 3 * hundredth] = hashes[near] ^ np.uint64(0b10000000000000000100000000010)
    hashes[equal + 3 * hundredth], originals[equal + 3 * hundredth] = hashes[equal], equal
    hashes[-2 * hundredth :] = 0  # blank pictures
    order = rng.permutation(count)
    shards = []
    directory.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(order, _SYNTHETIC_SHARDS)):
        file = f"train-{number:05d}-of-{_SYNTHETIC_SHARDS:05d}.tfrecord"
        rows, size = IndexRows(), len(part)
        rows.columns |= {
            "key": [f"photos/{i:08d}.jpg" for i in part],
            "class_name": [f"class {i % 1000}" for i in part],
            "label": [int(i % 1000) for i in part],
            "num_bytes": [20_000] * size,
            "source_sha256": [f"{int(i) * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4
                              for i in originals[part]],
            "source_bytes": [100_000] * size,
            "width": [256] * size,
            "height": [256] * size,
            "dhash": hashes[part].tolist(),
        }  # fmt: skip
        entry = write_index(
            str(directory), file, index_table(rows, "train", file, "none", RECORD_FEATURES)
        )
        shards.append({"file": file, "num_records": size, "num_bytes": 0, "index": entry})
    manifest = {
        "format_version": 1, "classes": [f"class {i}" for i in range(1000)],
        "splits": {"train": {"num_records": count, "shards": shards}},
        "features": RECORD_FEATURES, "image": {}, "listed": count, "rejects": {},
        "fingerprint": "0" * 64,
    }  # fmt: skip
    write_manifest(str(directory), manifest)


DUPLICATE_BENCHMARKS = {
    "duplicates": duplicates,
    "duplicates_of_millions": duplicates_of_millions,
}
