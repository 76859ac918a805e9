"""The public API: functions that build, open, train on, read, check and show a dataset.

    import imageshards as ims

    ims.build("photos/", "shards/", image_size=256, splits={"train": 0.8, "validation": 0.2})

    data = ims.open("shards/")
    train = data.train(batch_size=256, image_size=224, augment="light", seed=1)
    model.fit(train.dataset(), steps_per_epoch=train.steps_per_epoch)

    rows = data.index("train")     # an Arrow table with a row for each record
    source = data.source("train")  # the records, for PyTorch, grain and loops: source[17]

    for record in source:
        jpeg, label = record["image/encoded"], record["image/class/label"]

    figures = ims.evaluate("model/", data)
    rows = ims.predict("model/", "photos/")
    ims.export("model/", "served/")

The modules of this package are the lowest layer of the two programs `beam_pipeline` and `trainer`.
`import imageshards` loads none of them: each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_pipeline.api import build as build
    from beam_pipeline.progress import BuildSummary as BuildSummary
    from imageshards.adoption.command import adopt as adopt
    from imageshards.deduplication.command import duplicates as duplicates
    from imageshards.errors import UserError as UserError
    from imageshards.example import Values as Values
    from imageshards.example import decode_example as decode_example
    from imageshards.example import encode_example as encode_example
    from imageshards.manifest.file import load_manifest as load_manifest
    from imageshards.reporting.command import report as report
    from imageshards.tfrecord import Record as Record
    from imageshards.tfrecord import RecordError as RecordError
    from imageshards.tfrecord import read_records as read_records
    from imageshards.tfrecord import write_records as write_records
    from imageshards.verification.command import verify as verify
    from trainer.api import Data as Data
    from trainer.api import open as open
    from trainer.dataset.source import RecordSource as RecordSource
    from trainer.evaluate import evaluate as evaluate
    from trainer.export import export as export
    from trainer.predict import predict as predict
    from trainer.reader.batches import TrainingData as TrainingData
    from trainer.reader.described import EvaluationData as EvaluationData
    from trainer.strengths import Augment as Augment
    from trainer.training.callbacks import MetricsFile as MetricsFile
    from trainer.training.callbacks import WaitingTime as WaitingTime
    from trainer.training.fit import fit as fit
    from trainer.training.save import save as save


__version__ = "1.0.0"

# Module → its public names, the same as above. Only this module and `imageshards.commands` name the
# two programs: everything else in this package lies below them.
_HOMES = {
    "beam_pipeline.api": ["build"],
    "beam_pipeline.progress": ["BuildSummary"],
    "imageshards.adoption.command": ["adopt"],
    "imageshards.deduplication.command": ["duplicates"],
    "imageshards.errors": ["UserError"],
    "imageshards.example": ["Values", "decode_example", "encode_example"],
    "imageshards.manifest.file": ["load_manifest"],
    "imageshards.reporting.command": ["report"],
    "imageshards.tfrecord": ["Record", "RecordError", "read_records", "write_records"],
    "imageshards.verification.command": ["verify"],
    "trainer.dataset.source": ["RecordSource"],
    "trainer.evaluate": ["evaluate"],
    "trainer.export": ["export"],
    "trainer.predict": ["predict"],
    "trainer.reader.batches": ["TrainingData"],
    "trainer.reader.described": ["EvaluationData"],
    "trainer.api": ["Data", "open"],
    "trainer.strengths": ["Augment"],
    "trainer.training.callbacks": ["MetricsFile", "WaitingTime"],
    "trainer.training.fit": ["fit"],
    "trainer.training.save": ["save"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Like Python's gzip, this leaves `open` out: a star import must not replace the built-in function.
__all__ = ["__version__", *(name for name in _HOME_OF if name != "open")]

if not TYPE_CHECKING:  # A type checker would accept any name if it saw `__getattr__`.

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from imageshards.commands import import_module

        # Python calls `__getattr__` only for names that the module does not have yet.
        globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
