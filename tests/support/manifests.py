"""Manifests that tests change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageshards import storage
from imageshards.manifest import MANIFEST_NAME, publish_manifest


def write_manifest(directory: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a manifest over the one that is there; returns it with its digest."""
    storage.delete([storage.join(directory, MANIFEST_NAME)])
    return publish_manifest(directory, manifest)
