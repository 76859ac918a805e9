"""What a run of `imageshards train` has left, to be compared with another one's."""

import json
from typing import Any

from imageshards import storage

_MEASURED = ("images_per_second", "wait_fraction")


def metrics(output: object) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on how fast the machine is."""
    lines = storage.read(f"{output}/metrics.jsonl").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in _MEASURED} for line in lines]


def digest(output: object) -> bytes:
    return storage.read(f"{output}/weights.sha256").split()[0]
