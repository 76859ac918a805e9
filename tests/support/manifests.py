"""Manifests as JSON objects, which tests change in ways that no build would."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from imageshards import storage
from imageshards.manifest import MANIFEST_NAME, FeatureSpec, Image, Manifest
from imageshards.manifest import RECORD_FEATURES as _FEATURES
from imageshards.manifest.file import digest_of, to_json
from imageshards.typed import convert

RECORD_FEATURES: dict[str, Any] = msgspec.to_builtins(_FEATURES)
"""The features of every record with one label."""


def write_manifest(directory: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a manifest over the one that is there; returns it with its digest."""
    written = {**manifest, "digest": digest_of(manifest)}
    storage.write(storage.join(directory, MANIFEST_NAME), to_json(written))
    return written


def shards_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for split, entry in manifest["splits"].items():
        for shard in entry["shards"]:
            yield split, shard


def blank(**changes: Any) -> Manifest:
    """Returns a manifest without splits, with some other values."""
    image = Image(size=16, mode="crop")
    values: dict[str, Any] = {"splits": {}, "classes": [], "features": {}, "image": image}
    values |= {"format_version": 1, "listed": 0, "rejects": {}, "fingerprint": "f"}
    return Manifest(**values | changes)


def typed(manifest: Mapping[str, Any]) -> Manifest:
    return convert(manifest, Manifest)


def typed_features(features: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    return convert(features, dict[str, FeatureSpec])
