"""Which records of a split are read, and how often: classes, filters (`--where`), balance."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from imageshards.errors import UserError
from imageshards.text import about_look_alikes, composed, counted
from trainer.config import ReadConfig
from trainer.dataset.index import column_numbers, record_labels
from trainer.dataset.spec import DataSet, Split, Subset, describe


def select(config: ReadConfig, dataset: DataSet, split: Split, training: bool = False) -> Subset:
    """The records of `split` that `config` asks for, and how many they are.

    Their classes are those that the index tells, where some are chosen or repeated; chosen ones
    are renumbered in the order of `config.classes`. For `training` they are balanced, too.

    Raises:
        UserError: A class is unknown, a filter is wrong, nothing is left, or less than a batch for
            `training`, or a class that should be balanced has no records; or there is no index.
    """
    classes, filters, balance = config.classes, config.where, config.balance if training else "none"
    _check_kind(dataset, classes, balance)
    names = classes or dataset.classes
    ids = tuple(_class_id(dataset, name) for name in names)
    subset = Subset(
        dataset, split, names, ids if classes else None, filters, split.num_records,
        known_counts(dataset, split), balance,
    )  # fmt: skip
    to_count = balance != "none" and subset.class_counts is None
    if classes or filters or balance == "sampling" or to_count:
        subset = _chosen(subset, ids)
    if (classes or filters or balance != "none") and not subset.num_records:
        asked = [f"⟦--where⟧ {text!r}" for text in filters]
        asked += [f"⟦--classes⟧ {','.join(classes)}"] if classes else []
        raise UserError(
            f"{' and '.join(asked) or '⟦--balance⟧'} left no record of the split {split.name}, "
            f"which has {split.num_records}; expected at least one."
        )
    if dataset.target == "values":
        _check_numbers(subset, dataset.label_feature, "⟦--target⟧", -math.inf)
    if dataset.weight_feature is not None:
        _check_numbers(subset, dataset.weight_feature, "⟦--sample_weight⟧", 0)
    if balance == "sampling" and subset.class_counts is not None:
        subset = _repeated(subset, subset.class_counts)
    if training and subset.num_records < config.batch_size:
        raise UserError(
            f"⟦--batch_size⟧ received {config.batch_size}, but the split {split.name} has "
            f"{counted(subset.num_records, 'record')}; expected at most that many."
        )
    return subset


def _chosen(subset: Subset, ids: Sequence[int]) -> Subset:
    """`subset` with the classes of its records, those that are left out aside, and their counts."""
    import numpy as np  # a data set is opened without it

    table = np.full(len(subset.dataset.classes), -1, np.int32)
    table[list(ids)] = range(len(ids))
    passes, records, labels = record_labels(subset.dataset, subset.split, subset.filters)
    wanted = passes[records] & (table[labels] >= 0)
    records, labels = records[wanted], table[labels[wanted]]
    classes = np.where(passes & (subset.class_ids is None), 0, -1).astype(np.int32)
    # Of several labels any will do: their records are not balanced.
    classes[records] = labels
    counts = tuple(np.bincount(labels, minlength=len(ids)).tolist())
    return dataclasses.replace(
        subset,
        num_records=int((classes >= 0).sum()),
        class_counts=None if subset.dataset.target == "values" else counts,
        record_classes=classes,
    )


def model_labels(subset: Subset, labels: Any) -> Any:
    """What a record of the data set is to the model.

    Ids of classes, int64 [b], by the model's numbers: 0 where it does not have them. Of labels,
    float32 [b, classes], the model's own; values as they are.
    """
    if subset.class_ids is None:
        return labels
    import tensorflow as tf

    if subset.dataset.target == "labels":
        return tf.gather(labels, subset.class_ids, axis=1)
    known = {number: place for place, number in enumerate(subset.class_ids)}
    # A placeholder has label 0 of the data set, which the model may not know. Its weight is 0, so
    # any class of the model will do. Other unknown classes were filtered out.
    table = [known.get(number, 0) for number in range(len(subset.dataset.classes))]
    return tf.gather(tf.constant(table, tf.int64), labels)


def class_ids(subset: Subset, classes: Sequence[str]) -> tuple[int, ...]:
    """For each class of `subset` its number among the model's `classes`; refuses any other."""
    known = {composed(name): number for number, name in enumerate(classes)}
    unknown = [name for name in subset.classes if composed(name) not in known]
    if unknown:
        remedy = "leave them out by ⟦--classes⟧"
        if not subset.dataset.label_values and all(name.isdecimal() for name in unknown):
            remedy = "name them by --class_names of imageshards adopt"
        raise UserError(
            f"⟦--data⟧ received {subset.dataset.data!r}, whose classes {_some(unknown)} the model "
            f"does not know; expected some of {_some(classes)}: {remedy}."
        )
    return tuple(known[composed(name)] for name in subset.classes)


def known_counts(dataset: DataSet, split: Split) -> tuple[int, ...] | None:
    """Records per class id, added up over the shards; None where one has no counts."""
    # Shards count the classes that the data set was built with, not those of another column.
    if not dataset.classes or dataset.label_values:
        return None
    totals: Counter[str] = Counter()
    for shard in split.shards:
        if shard.classes is None:
            return None
        totals.update(shard.classes)
    return tuple(totals[name] for name in dataset.classes)


def _class_id(dataset: DataSet, name: str) -> int:
    if name in dataset.classes:
        return dataset.classes.index(name)
    for number, known in enumerate(dataset.classes):  # data sets of others have names in any form
        if composed(known) == composed(name):
            return number
    near = difflib.get_close_matches(name, dataset.classes, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    hint = about_look_alikes(name, dataset.classes) or hint
    raise UserError(
        f"⟦--classes⟧ received {name!r}, which is no class of {dataset.data!r}{hint}; expected "
        f"names among {_some(dataset.classes, repr)}."
    )


def _some(names: Sequence[str], shown: Callable[[str], str] = str) -> str:
    return ", ".join([*map(shown, names[:8]), *["…"] * (len(names) > 8)])


def _repeated(subset: Subset, counts: tuple[int, ...]) -> Subset:
    empty = [name for name, n in zip(subset.classes, counts, strict=True) if not n]
    if empty:
        raise UserError(
            f"⟦--balance⟧ received 'sampling', but the split {subset.split.name} has no record "
            f"of {_some(empty)} to repeat; expected some of every class: leave classes "
            "out by ⟦--classes⟧, or use ⟦--balance weights|balance='weights'⟧."
        )
    return dataclasses.replace(subset, num_records=max(counts) * len(counts))


def _check_kind(dataset: DataSet, classes: Sequence[str] | None, balance: str) -> None:
    """Refuses what is asked of classes where the target has none."""
    what = f"but the target {dataset.label_feature} is {describe(dataset)}"
    if classes and dataset.target == "values":
        raise UserError(
            f"⟦--classes⟧ received {','.join(classes)}, {what}; expected none: choose records by "
            "⟦--where⟧."
        )
    if balance != "none" and dataset.target != "class":
        raise UserError(
            f"⟦--balance⟧ received {balance!r}, {what}, which are not balanced; expected 'none': "
            "weigh records by a column of your own with ⟦--sample_weight⟧."
        )


def _check_numbers(subset: Subset, column: str, flag: str, least: float) -> None:
    """Refuses a column that is no number, or one below `least`, in a record that is read."""
    import numpy as np

    numbers = column_numbers(subset.dataset, subset.split, column)
    if numbers is None:
        return
    wrong = ~(np.isfinite(numbers) & (numbers >= least)).all(1)
    if subset.record_classes is not None:
        wrong &= subset.record_classes >= 0
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong)[0])
    others = f", and as little in {int(wrong.sum()) - 1} more" * (int(wrong.sum()) > 1)
    remedy = f", for example '{column}>={max(least, -1e30):g}'"
    if numbers.shape[1] > 1 or numbers[first, 0] == math.inf:
        remedy = " on another column"
    value = ",".join(f"{one:g}" for one in numbers[first])
    raise UserError(
        f"{flag} received {column!r}, which is {value} in record {first} of the split "
        f"{subset.split.name}{others}; expected {'a number' if least < 0 else 'at least 0'} in "
        f"each record that is read: leave others out by ⟦--where⟧{remedy}."
    )
