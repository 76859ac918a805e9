"""Describes a dataset in notebooks, by figures, classes and pictures."""

from __future__ import annotations

from imageshards.manifest import TRAIN_NAMES
from imageshards.page import number, render
from imageshards.reporting.page import THUMB_PX, thumbs_of
from imageshards.text import counted
from trainer.dataset.spec import DatasetSpec, shown_size
from trainer.dataset.subset import known_counts

MAX_CLASSES = 20
MAX_PICTURES = 8


def html_of(place: str, dataset: DatasetSpec) -> str:
    """Returns HTML without outside resources. Never raises because of the dataset's files.

    It shows the records of each split, the first classes with their records in each split, and
    pictures of the training split, or of the first split with records.
    """
    splits = dataset.splits
    facts = {name: counted(split.num_records, "record") for name, split in splits.items()}
    facts["pictures"] = shown_size(dataset.image.size) + " or others" * dataset.image.varies
    # A split whose shards count no classes has no column.
    known = {name: known_counts(dataset, split) for name, split in splits.items()}
    counts = {name: of_split for name, of_split in known.items() if of_split is not None}
    filled = [name for name, split in splits.items() if split.num_records]
    shown = [*(name for name in filled if name in TRAIN_NAMES), *filled][:1]
    shards = [shard for name in shown for shard in dataset.manifest.splits[name].shards]
    return render(
        "trainer.dataset",
        "notebook.jinja",
        title=f"Data {place!r}",
        thumb_px=THUMB_PX,
        facts=facts,
        columns=list(counts),
        classes=[
            (name, [number(of_split[i]) for of_split in counts.values()])
            for i, name in enumerate(dataset.classes[:MAX_CLASSES])
        ],
        more=len(dataset.classes) - MAX_CLASSES,
        pictures=thumbs_of(dataset.data, dataset.manifest, shards, MAX_PICTURES)[0],
    )
