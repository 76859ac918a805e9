"""Whether class ids mean the classes that the records themselves name."""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

from imageshards import storage
from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.manifest import MANIFEST_NAME
from imageshards.tfrecord import RecordError, read_records
from trainer.dataset.counting import RecordProblem, class_id
from trainer.dataset.spec import DataSet, Shard, Split

# Enough to find an order that is not that of the records, too few to be noticed.
_SHARDS = 8
_RECORDS = 16


class _Named(NamedTuple):
    """A record that names a class of the data set.

    Attributes:
        path: Its shard.
        number: Of the record within the shard, from 0.
        label: Its class id.
        text: The class it names.
    """

    path: str
    number: int
    label: int
    text: str


def check_class_order(dataset: DataSet, split: Split) -> None:
    """Compares the class ids of some first records with the names that stand beside them.

    A name that is no class of the data set says nothing: others write descriptions there.

    Args:
        dataset: Where `split` belongs; nothing is read where it has no `text_feature`.
        split: Whose records are read.

    Raises:
        UserError: A record names another class; or its store cannot be used.
    """
    if dataset.text_feature is None:
        return
    shards = [shard for shard in split.shards if shard.num_records]
    chosen = shards[:: max(1, -(-len(shards) // _SHARDS))]
    found = storage.map_concurrently(lambda shard: _first_named(dataset, shard), chosen)
    named = [one for of_shard in found for one in of_shard]
    wrong = [one for one in named if one.text != dataset.classes[one.label]]
    if not wrong:
        return
    path, number, label, text = wrong[0]
    again = "describe it again by imageshards adopt" if dataset.adopted else "build it again"
    raise UserError(
        f"⟦--data⟧ received {dataset.data!r}, whose class {label} is {dataset.classes[label]!r}, "
        f"but record {number} of {path} has this id and {text!r} as {dataset.text_feature}; "
        f"expected the classes in the order that the records were written with: put "
        f"back the classes of {MANIFEST_NAME}, or {again}."
    )


def _first_named(dataset: DataSet, shard: Shard) -> list[_Named]:
    """Of the first records; broken ones are left to the reader, which tells more."""
    named: list[_Named] = []
    with contextlib.suppress(OSError, RecordError):
        for record in itertools.islice(read_records(shard.path), _RECORDS):
            with contextlib.suppress(RecordProblem):
                label, text = class_id(dataset, record.payload), _text(dataset, record.payload)
                if text in dataset.classes:
                    named.append(_Named(shard.path, record.number, label, text))
    return named


def _text(dataset: DataSet, payload: bytes) -> str:
    name = dataset.text_feature or ""
    values = decode_example(payload, {name}).get(name) or [b""]
    return values[0].decode(errors="replace") if isinstance(values[0], bytes) else ""
