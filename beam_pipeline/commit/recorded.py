"""Sizes and SHA-256 of the files beside the shards, as `verify` compares them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from imageshards import storage
from imageshards.storage import map_concurrently


def recorded_files(
    output: str,
    texts: Mapping[str, str],
    rejected: Mapping[str, dict[str, Any]],
    others: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """Returns what the manifest records of each file beside shards and index, by its name.

    Nothing that may be large is read again: rejected originals were hashed when they were written.

    Args:
        output: The dataset's folder.
        texts: Files that the commit wrote, with their content.
        rejected: Files of rejected originals, as `finalize_shard` described them.
        others: Files that are read here.
    """

    def read(name: str) -> tuple[str, dict[str, Any]]:
        num_bytes, sha256 = storage.sha256_of(storage.join(output, name))
        return name, {"num_bytes": num_bytes, "sha256": sha256}

    found = dict(map_concurrently(read, others)) | dict(rejected)
    for name, text in texts.items():
        data = text.encode()
        found[name] = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return dict(sorted(found.items()))
