"""What people import: a data set is built, opened, trained on, read, checked and shown.

    import imageshards as ims

    ims.build("photos/", "shards/", image_size=256, splits={"train": 0.8, "validation": 0.2})

    data = ims.open("shards/")
    train = data.train(batch_size=256, image_size=224, augment="light", seed=1)
    model.fit(train.dataset(), steps_per_epoch=train.steps_per_epoch)

    rows = data.index("train")     # an Arrow table: what each record holds, and where it is
    source = data.source("train")  # the records, for PyTorch, grain and loops: source[17]

    for record in source:
        jpeg, label = record["image/encoded"], record["image/class/label"]

The face of the package, and the leaf below the two programs `beam_pipeline` and `trainer`: the
contract on disk, files and objects, errors, progress, the report kit. Importing it loads none of
that, and never TensorFlow or Beam: a name is looked up when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_pipeline.api import build
    from beam_pipeline.progress import BuildSummary
    from imageshards.errors import UserError
    from imageshards.example import Values, decode_example, encode_example
    from imageshards.manifest import load_manifest
    from imageshards.reporting.command import report
    from imageshards.tfrecord import Record, RecordError, read_records, write_records
    from imageshards.verification.command import verify
    from trainer.api import Data
    from trainer.api import open as open
    from trainer.dataset.source import RecordSource
    from trainer.reader.batches import EvaluationData, TrainingData
    from trainer.training.callbacks import MetricsFile, WaitingTime
    from trainer.training.fit import fit

__version__ = "0.1.0"

# Where each name stands, as above. The programs are named here and in `imageshards.commands`.
_HOMES = {
    "beam_pipeline.api": ["build"],
    "beam_pipeline.progress": ["BuildSummary"],
    "imageshards.errors": ["UserError"],
    "imageshards.example": ["Values", "decode_example", "encode_example"],
    "imageshards.manifest": ["load_manifest"],
    "imageshards.reporting.command": ["report"],
    "imageshards.tfrecord": ["Record", "RecordError", "read_records", "write_records"],
    "imageshards.verification.command": ["verify"],
    "trainer.dataset.source": ["RecordSource"],
    "trainer.reader.batches": ["EvaluationData", "TrainingData"],
    "trainer.api": ["Data", "open"],
    "trainer.training.callbacks": ["MetricsFile", "WaitingTime"],
    "trainer.training.fit": ["fit"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# As in Python's gzip, `open` is left out: a star import must not replace the built-in one.
__all__ = [
    "BuildSummary",
    "Data",
    "EvaluationData",
    "MetricsFile",
    "Record",
    "RecordError",
    "RecordSource",
    "TrainingData",
    "UserError",
    "Values",
    "WaitingTime",
    "__version__",
    "build",
    "decode_example",
    "encode_example",
    "fit",
    "load_manifest",
    "read_records",
    "report",
    "verify",
    "write_records",
]

if not TYPE_CHECKING:  # a type checker knows the names from above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from imageshards.commands import import_module

        found = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
