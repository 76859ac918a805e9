"""`manifest.json`: the contract between the two programs, written last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imageshards import storage
from imageshards.errors import DamagedManifestError, UserError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
STAGING_NAME = ".staging"

# What every record holds, whatever its extra columns.
RECORD_FEATURES: dict[str, dict[str, Any]] = {
    "image/encoded": {"dtype": "string", "shape": []},
    "image/format": {"dtype": "string", "shape": []},
    "image/height": {"dtype": "int64", "shape": []},
    "image/width": {"dtype": "int64", "shape": []},
    "image/channels": {"dtype": "int64", "shape": []},
    "image/colorspace": {"dtype": "string", "shape": []},
    "image/class/label": {"dtype": "int64", "shape": []},
    "image/class/text": {"dtype": "string", "shape": []},
    "image/filename": {"dtype": "string", "shape": []},
    "image/key/sha256": {"dtype": "string", "shape": []},
}

# Columns below this name hold one entry per box; these four are the sides of the boxes, 0..1.
OBJECT_PREFIX = "image/object/"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))

_REQUIRED: dict[str, type] = {
    "format_version": int,
    "splits": dict,
    "classes": list,
    "features": dict,
    "image": dict,
    "listed": int,
    "rejects": dict,
    "fingerprint": str,
}


def load_manifest(directory: str) -> dict[str, Any]:
    """Reads and checks `directory/manifest.json`.

    Raises:
        DamagedManifestError: It is damaged.
        UserError: There is none, it cannot be read, or a newer version wrote it; or its store
            cannot be used.
    """
    path = storage.join(directory, MANIFEST_NAME)
    try:
        manifest = json.loads(storage.read(path))
    except FileNotFoundError:
        raise UserError(
            f"{directory!r} holds no {MANIFEST_NAME}, so it is not a finished data set; expected "
            "the --output of a build that ran to its end (run the same build again to finish it)."
        ) from None
    except OSError as e:
        raise UserError(
            f"{path} could not be read ({e.strerror or e}); fix its permissions, or try again."
        ) from e
    except ValueError as e:
        raise DamagedManifestError(
            f"{path} could not be read ({e}); expected the JSON a build writes; build again with "
            "--overwrite."
        ) from e
    check_manifest(manifest, path)
    return dict(manifest)


def check_manifest(manifest: Any, path: str) -> None:
    """Raises `UserError` unless the fixed keys are there with the right types."""
    if not isinstance(manifest, Mapping):
        raise DamagedManifestError(
            f"{path} holds a {type(manifest).__name__}; expected a JSON object; build again with "
            "--overwrite."
        )
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{path} has format_version {version}; this release reads up to {FORMAT_VERSION}: "
            "upgrade imageshards."
        )
    for key, kind in _REQUIRED.items():
        if not isinstance(manifest.get(key), kind):
            raise DamagedManifestError(
                f"{path} has {key!r} = {manifest.get(key)!r}; expected a {kind.__name__}; "
                "build again with --overwrite."
            )


def write_whole(path: str, text: str) -> None:
    """Writes a file that appears whole or not at all, and survives a power cut."""
    storage.write(path, text)


def to_json(value: Any) -> str:
    """JSON as all our files have it: readable, and the same bytes for the same content."""
    return json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False) + "\n"
