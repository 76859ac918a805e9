"""Flags of `imageshards train`, and what a run has left, to be compared with another one's."""

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


def train_flags(data: object, output: object, *more: object) -> list[str]:
    """Returns flags of a model that has batch statistics and dropout, and is built in a moment.

    A flag in `more` takes the place of ours.
    """
    ours = {"--batch_size": 8, "--augment": "none", "--model": "tests.support.tiny_models:dense"}
    others = (each for pair in ours.items() if pair[0] not in more for each in pair)
    return [*map(str, ["--data", data, "--output", output, *others, *more])]
