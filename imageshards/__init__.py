"""What people import: a data set to train on, its manifest, its records, its check.

    import imageshards as ims

    data = ims.open("shards/")
    train = data.train(batch_size=256, image_size=224, augment="light", seed=1)
    model.fit(train.dataset(), steps_per_epoch=train.steps_per_epoch)

    rows = data.index("train")           # an Arrow table: what each record holds, and where it is
    example = data.record("cats/1.jpg")  # one of them, read alone

    for example in ims.read_examples("shards/", "train"):
        jpeg, label = example["image/encoded"][0], example["image/class/label"][0]

The face of the package, and the leaf below the two programs `beam_pipeline` and `trainer`: the
contract on disk, files and objects, errors, progress, the report kit. Importing it loads none of
that, and never TensorFlow or Beam: a name is looked up when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from imageshards.errors import UserError
    from imageshards.example import Values, decode_example, encode_example
    from imageshards.manifest import load_manifest
    from imageshards.tfrecord import Record, RecordError, read_records, write_records
    from imageshards.verification.command import verify

__version__ = "0.1.0"

# Where each name stands. The programs are named here and in `imageshards.commands`.
_HOMES = {
    "UserError": "imageshards.errors",
    "Values": "imageshards.example",
    "decode_example": "imageshards.example",
    "encode_example": "imageshards.example",
    "load_manifest": "imageshards.manifest",
    "Record": "imageshards.tfrecord",
    "RecordError": "imageshards.tfrecord",
    "read_records": "imageshards.tfrecord",
    "write_records": "imageshards.tfrecord",
    "open": "trainer.reader.data",
    "fit": "trainer.training.fit",
    "Checkpoint": "trainer.training.checkpoint_callback",
    "MetricsFile": "trainer.training.callbacks",
    "NaNGuard": "trainer.training.callbacks",
    "TensorBoard": "trainer.training.callbacks",
    "WaitingTime": "trainer.training.callbacks",
    "verify": "imageshards.verification.command",
}

# Those of the programs are followed by no type checker. As in gzip, `open` is left out: a star
# import must not replace Python's own.
__all__ = [
    "Checkpoint",
    "MetricsFile",
    "NaNGuard",
    "Record",
    "RecordError",
    "TensorBoard",
    "UserError",
    "Values",
    "WaitingTime",
    "__version__",
    "decode_example",
    "encode_example",
    "fit",
    "load_manifest",
    "read_examples",
    "read_records",
    "verify",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def read_examples(
    directory: str, split: str | None = None, only: Collection[str] | None = None
) -> Iterator[dict[str, Values]]:
    """Yields the features of every record of a data set, by name, each as a list of values.

    Shard by shard, in the manifest's order, every checksum looked at: for a look at the data,
    not for training.

    Args:
        directory: What a build wrote, here or in a store.
        split: One of its splits; None for all.
        only: Names of the features that are wanted; None for all.

    Raises:
        UserError: There is no data set, or no such split.
        RecordError: A record is damaged.
        OSError: A shard is missing or cannot be read.
    """
    from imageshards import example, manifest, tfrecord

    described = manifest.load_manifest(directory, adopted=True)
    if split is not None:
        split = manifest.find_split(split, described["splits"], "split")
    for name, shard in manifest.shards_of(described):
        if split in (None, name):
            path = manifest.shard_path(directory, shard)
            for record in tfrecord.read_records(path):
                try:
                    yield example.decode_example(record.payload, only)
                except ValueError as e:
                    place = record.number, record.offset_bytes
                    raise tfrecord.RecordError(path, *place, str(e)) from e
