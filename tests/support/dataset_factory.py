"""Small, valid datasets as a build writes them, made without Beam or TensorFlow."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from imageshards.example import Values, decode_example, encode_example
from imageshards.index import IndexRows, index_table, write_index
from imageshards.tfrecord import frame_record
from tests.support.manifests import RECORD_FEATURES, typed_features, write_manifest
from tests.support.pictures import saved

CLASSES = ("cat", "dog")


def described(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def framed(payloads: Sequence[bytes]) -> bytes:
    return b"".join(map(frame_record, payloads))


def jpeg(number: int, size: tuple[int, int] = (16, 16), mode: str = "RGB") -> bytes:
    """A JPEG of one colour that depends on `number`."""
    colour = (number * 37 % 256, number * 91 % 256, number * 53 % 256)
    return saved(Image.new("RGB", size, colour).convert(mode), quality=90)


def features_of(number, label, classes=CLASSES, **changes: Values) -> dict[str, Values]:
    """The features of record `number`; `changes` name them with `__` for `/`."""
    features: dict[str, Values] = {
        "image/encoded": [jpeg(number)],
        "image/format": [b"JPEG"],
        "image/height": [16],
        "image/width": [16],
        "image/channels": [3],
        "image/colorspace": [b"RGB"],
        "image/class/label": [label],
        "image/class/text": [classes[label].encode()],
        "image/filename": [f"{classes[label]}/{number}.jpg".encode()],
        "image/key/sha256": [hashlib.sha256(b"%d" % number).hexdigest().encode()],
    }
    return features | {name.replace("__", "/"): values for name, values in changes.items()}


class Dataset:
    """A dataset on disk that can be changed shard by shard.

    Attributes:
        manifest: What `save` writes as manifest.json; it sets `files` and `digest`.
        payloads: File name → the payloads of its records.
    """

    def __init__(self, directory: Path, shards=None, per_shard=6, classes=CLASSES, rejects=()):
        self.directory = directory
        self.payloads: dict[str, list[bytes]] = {}
        self.splits: dict[str, list[str]] = {}
        numbers = itertools.count()
        for split, count in (shards or {"train": 3, "validation": 2}).items():
            self.splits[split] = [f"{split}-{n:05d}-of-{count:05d}.tfrecord" for n in range(count)]
            for name in self.splits[split]:
                some = itertools.islice(numbers, per_shard)
                features = (features_of(n, n % len(classes), classes) for n in some)
                self.payloads[name] = list(map(encode_example, features))
        self.manifest: dict[str, Any] = _fixed_part(classes, dict(rejects))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_companions()
        for name in self.payloads:
            self.write_shard(name)
        self.describe()
        self.save()

    def write_shard(self, name: str) -> None:
        (self.directory / name).write_bytes(framed(self.payloads[name]))

    def replace(self, name: str, index: int, features: Mapping[str, Values]) -> None:
        """Replaces one record, in the file and in all the manifest says."""
        self.payloads[name][index] = encode_example(features)
        self.write_shard(name)
        self.describe()
        self.save()

    def change_records(self, change: Callable[[int], Mapping[str, Values]]) -> None:
        """Adds the features that `change` returns for the number of a record to each record."""
        numbers = itertools.count()
        for name, payloads in self.payloads.items():
            kept = map(decode_example, payloads)
            payloads[:] = [encode_example({**old, **change(next(numbers))}) for old in kept]
            self.write_shard(name)
        self.describe()
        self.save()

    def describe(self) -> None:
        splits: dict[str, Any] = {}
        for split, names in self.splits.items():
            shards = [self._entry(name) | self._index_of(split, name) for name in names]
            total = sum(shard["num_records"] for shard in shards)
            splits[split] = {"num_records": total, "shards": shards}
        records = sum(split["num_records"] for split in splits.values())
        self.manifest["splits"] = splits
        self.manifest["listed"] = records + sum(self.manifest["rejects"].values())

    def save(self) -> None:
        """Writes what lies beside the shards, and last manifest.json, with what it says of that."""
        names: dict[str, Any] = dict.fromkeys(self.manifest["features"], {})
        content = json.dumps({"featuresDict": {"features": names}})
        (self.directory / "features.json").write_text(content)
        splits = [
            {"name": name, "shardLengths": [str(s["num_records"]) for s in split["shards"]]}
            for name, split in self.manifest["splits"].items()
        ]
        (self.directory / "dataset_info.json").write_text(json.dumps({"splits": splits}))
        self.manifest["files"] = {
            str(path.relative_to(self.directory)): described(path)
            for pattern in ("features.json", "dataset_info.json", "transform/**/*", "quarantine/*")
            for path in sorted(self.directory.glob(pattern))
            if path.is_file()
        }
        self.manifest = write_manifest(str(self.directory), self.manifest)

    def _entry(self, name: str) -> dict[str, Any]:
        held: list[dict[str, Any]] = list(map(decode_example, self.payloads[name]))
        texts = Counter(features["image/class/text"][0].decode() for features in held)
        entry = {"file": name, "num_records": len(held), "classes": dict(sorted(texts.items()))}
        return entry | described(self.directory / name)

    def _index_of(self, split: str, name: str) -> dict[str, Any]:
        rows, features = IndexRows(), typed_features(self.manifest["features"])
        for payload in self.payloads[name]:
            rows.add(decode_example(payload), len(payload) + 16, 1000)
        table = index_table(rows, split, name, typed_features(features))
        return {"index": msgspec.to_builtins(write_index(str(self.directory), name, table))}

    def _write_companions(self) -> None:
        for name in ("transform_fn", "transformed_metadata"):
            (self.directory / "transform" / name).mkdir(parents=True, exist_ok=True)
            (self.directory / "transform" / name / "graph").write_text(name)
        quarantine = self.directory / "quarantine"
        quarantine.mkdir(exist_ok=True)
        rejects = [
            {"key": f"cat/bad{number}.jpg", "uri": f"/photos/cat/bad{number}.jpg", "label": "cat",
             "split": "train", "reason": reason, "stage": "decode",
             "message": f'it is <{reason}> & "bad"'}
            for reason, count in self.manifest["rejects"].items()
            for number in range(count)
        ]  # fmt: skip
        lines = "".join(json.dumps(reject) + "\n" for reject in rejects)
        (quarantine / "rejects.jsonl").write_text(lines, encoding="utf-8")
        payloads = [encode_example({"reason": [reject["reason"].encode()]}) for reject in rejects]
        (quarantine / "rejects-00000-of-00001.tfrecord").write_bytes(framed(payloads))


def _fixed_part(classes: Sequence[str], rejects: dict[str, int]) -> dict[str, Any]:
    return {
        "format_version": 1,
        "splits": {},
        "classes": list(classes),
        "features": dict(RECORD_FEATURES),
        "image": {
            "size": 16, "mode": "crop", "filter": "bicubic", "only_shrink": False,
            "quality": 90, "subsampling": "4:2:0", "colorspace": "rgb", "channels": 3,
            "background": [255, 255, 255], "max_pixels": 100_000_000, "max_bytes": 67_108_864,
            "bbox_frame": "stored", "mean": [0.48, 0.45, 0.41], "std": [0.26, 0.25, 0.26],
        },
        "listed": 0,
        "rejects": rejects,
        "skipped": {"hidden": 1, "not_an_image_name": 2},
        "source": {"formats": {"JPEG": 30}, "notes": {"exif_rotated": 4, "not_jpeg": 1}},
        "fingerprint": "f" * 64,
        "options": {
            "input": {"input": "photos/", "group_column": None, "columns": None},
            "plan": {"splits": {"train": 0.9, "validation": 0.1}, "salt": "imageshards"},
        },
        "versions": {"imageshards": "1.0.0", "apache-beam": "2.77.0", "pillow": "12.3.0"},
    }  # fmt: skip
