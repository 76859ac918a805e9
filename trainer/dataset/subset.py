"""Selects the records of a split that are read, and how often: classes, `--where`, balance."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imageshards import storage
from imageshards.commands.options import refuse_idle
from imageshards.errors import Arg, UserError
from imageshards.text import about_look_alikes, composed, counted
from imageshards.tfrecord import RecordError
from trainer.config import ReadConfig
from trainer.dataset.batch import Labels
from trainer.dataset.index import column_numbers, record_labels
from trainer.dataset.pieces import Pieces, record_sizes
from trainer.dataset.source import RecordSource
from trainer.dataset.spec import (
    DatasetSpec,
    FeatureSpec,
    MeanStd,
    Split,
    described_target,
    value_names,
)

# Reading so many records from a store takes some seconds.
MAX_SAMPLED = 1000


@dataclasses.dataclass(frozen=True)
class Subset:
    """The records of a split that are read, and how often.

    Attributes:
        dataset: The dataset of `split`.
        split: The whole split, as its shards store it.
        classes: The model's classes, in the order of its outputs.
        class_ids: The dataset's id for each of `classes` if only some classes are read. None if all
            are read, under their ids in the dataset.
        filters: Conditions that every record has to pass, as `--where` gives them.
        num_records: Number of records in one pass (an epoch), copies included.
        class_counts: Number of records of each class without copies; None if they are not counted.
        balance: How classes are balanced. `weights`: by weights in the loss. `sampling`: records of
            rare classes are repeated, so that every class comes max(class_counts) times in each
            pass. `none`.
        record_classes: The model's class of each record of the split, -1 if the record is not read:
            NumPy int32 [records]. None if every record is read once.
        missing_target: Number of records that pass `filters`, but are not read, as a value of their
            target is missing (NaN, or null in the index).
    """

    dataset: DatasetSpec
    split: Split
    classes: tuple[str, ...]
    class_ids: tuple[int, ...] | None
    filters: tuple[str, ...]
    num_records: int
    class_counts: tuple[int, ...] | None
    balance: str = "none"
    record_classes: Any = dataclasses.field(default=None, repr=False, compare=False)
    missing_target: int = 0

    @functools.cached_property
    def pieces(self) -> Pieces:
        """The pieces of the whole split, read from the index at the first access."""
        return Pieces.cut(record_sizes(self.dataset, self.split))

    @functools.cached_property
    def target_mean_std(self) -> MeanStd | None:
        """Mean and deviation of the target's values in the records that are read, if it has any."""
        return mean_and_std(self, self.dataset)

    @property
    def num_outputs(self) -> int:
        """Number of a model's outputs: a logit for each class, or k values."""
        return len(self.classes) or self.dataset.num_outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the model's outputs: classes, or values."""
        return self.classes or value_names(self.dataset.label_feature, self.dataset.target_shape)

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """The weight of each class in the loss; None if all weigh 1."""
        if self.balance != "weights" or self.class_counts is None:
            return None
        return balancing_weights(self.class_counts)


def balancing_weights(counts: Sequence[float]) -> tuple[float, ...]:
    """Returns the weight N / (K * n_c) of each class c, for n_c of N records in K classes."""
    # A class without records keeps 1, and does not count as one of the K classes.
    present = sum(1 for n in counts if n)
    return tuple(sum(counts) / (present * n) if n else 1.0 for n in counts)


def select(
    config: ReadConfig, dataset: DatasetSpec, split: Split, training: bool = False
) -> Subset:
    """Returns the subset of `split` that `config` asks for; balanced if it is for `training`.

    Chosen classes are renumbered in the order of `config.classes`. Records whose target is a
    missing value are left out, if the index has the values.

    Raises:
        UserError: A class is unknown, a filter is wrong, too few records remain, a class to balance
            has no records, or there is no index.
    """
    classes, filters, balance = config.classes, config.where, config.balance if training else "none"
    what = f"with the target {described_target(dataset)}"
    if not dataset.has_classes:
        refuse_idle(config, "classes", what, Arg("where"))
    if training and dataset.target != "class":
        refuse_idle(config, "balance", what, Arg("sample_weight"))
    names = classes or dataset.classes
    ids = _class_ids(dataset, classes) if classes else tuple(range(len(names)))
    subset = Subset(
        dataset, split, names, ids if classes else None, filters, split.num_records,
        known_counts(dataset, split), balance,
    )  # fmt: skip
    # The manifest may count no classes; the index then has to be read to balance them.
    to_count = balance != "none" and subset.class_counts is None
    columns = [one.label_feature for one in dataset.targets if one.target == "values"]
    numbers = {column: column_numbers(dataset, split, column) for column in columns}
    # Which records miss a value, bool [records]; a single False if no values are known.
    missing = np.logical_or.reduce(
        [np.isnan(found).any(1) for found in numbers.values() if found is not None]
    )
    if classes or filters or balance == "sampling" or to_count or missing.any():
        subset = _chosen(subset, ids, missing)
    if split.num_records and not subset.num_records:
        raise _nothing_left(subset)
    for column, found in numbers.items():
        _check_numbers(subset, column, found, "target", -math.inf)
    if dataset.weight_feature is not None:
        weights = column_numbers(dataset, split, dataset.weight_feature)
        _check_numbers(subset, dataset.weight_feature, weights, "sample_weight", 0)
    if balance == "sampling" and subset.class_counts is not None:
        subset = _repeated(subset, subset.class_counts)
    if training and subset.num_records < config.batch_size:
        raise UserError(
            argument="batch_size",
            received=f"{config.batch_size}, but the split {split.name} has "
            f"{counted(subset.num_records, 'record')}",
            expected="at most as many",
        )
    return subset


def refuse_overlap(training: Subset, validation: Subset) -> None:
    """Refuses a validation with records of the training, whose figures would look too good."""
    if training.dataset.fingerprint != validation.dataset.fingerprint:
        return
    # Splits that are read as one may share some of their shards with the other subset.
    trained, validated = _read_in_shards(training), _read_in_shards(validation)
    same = trained.keys() & validated.keys()
    shared = sum(int((trained[shard] & validated[shard]).sum()) for shard in same)
    if shared:
        other = Arg("validation_split", "none", python="another split or where of Data.evaluation")
        raise UserError(
            argument="validation_split",
            received=f"{validation.split.name!r} with {counted(shared, 'record')} that the "
            "training reads",
            expected="records that the training does not read",
            remedy="use " + other + ", or say " + Arg("allow_overlap", True),
        )


def _read_in_shards(subset: Subset) -> dict[str, NDArray[np.bool_]]:
    """Returns by the name of each shard which of its records are read."""
    split, classes = subset.split, subset.record_classes
    read = np.ones(split.num_records, bool) if classes is None else classes >= 0
    names = [shard.name for shard in split.shards]
    return dict(zip(names, np.split(read, split.starts[1:]), strict=True))


def mean_and_std(subset: Subset, target: DatasetSpec) -> MeanStd | None:
    """Returns the mean and population deviation of each value of a target; None without values.

    Values that the index lacks, like lists of more than 16, are read from up to `MAX_SAMPLED`
    evenly spaced records.
    """
    if target.target != "values":
        return None
    read = np.arange(subset.split.num_records)
    if subset.record_classes is not None:
        read = np.flatnonzero(subset.record_classes >= 0)
    numbers = column_numbers(subset.dataset, subset.split, target.label_feature)
    numbers = _sampled(subset, target, read) if numbers is None else numbers[read]
    if not len(numbers):
        return None
    # The loss divides by the deviation, so a value that is always the same has 1 instead of 0.
    std = np.where(np.ptp(numbers, 0) > 0, numbers.std(0), 1.0)
    return MeanStd(tuple(numbers.mean(0).tolist()), tuple(std.tolist()))


def _sampled(subset: Subset, target: DatasetSpec, read: NDArray[np.int64]) -> NDArray[np.float64]:
    """Reads the values of some of the records `read`, float64 [n, k], without broken records."""
    column, size = target.label_feature, target.num_outputs
    source = RecordSource(subset.dataset, subset.split, [column])

    def values(number: int) -> np.ndarray:
        try:
            return source[number][column].reshape(-1)
        except RecordError:
            return np.full(size, math.nan)

    places = np.linspace(0, len(read) - 1, min(len(read), MAX_SAMPLED)).astype(int)
    rows = list(storage.map_concurrently(values, read[places].tolist()))
    found = np.array(rows, np.float64).reshape(-1, size)
    return found[np.isfinite(found).all(1)]


def refuse_missing_inputs(subset: Subset, inputs: Mapping[str, FeatureSpec]) -> None:
    """Refuses float inputs that a record of `subset` lacks, which would make the loss NaN."""
    for name, spec in inputs.items():
        if spec.dtype == "float32" and spec.shape is not None:
            numbers = column_numbers(subset.dataset, subset.split, name)
            _check_numbers(subset, name, numbers, "inputs", -math.inf)


def _nothing_left(subset: Subset) -> UserError:
    asked = [("where", repr(text)) for text in subset.filters]
    asked += [("classes", ",".join(subset.classes))] if subset.class_ids is not None else []
    if subset.missing_target:
        count = counted(subset.missing_target, "record")
        names = " and ".join(one.label_feature for one in subset.dataset.targets)
        asked += [("target", f"{names}, missing in {count}")]
    (argument, received), *others = asked or [("balance", repr(subset.balance))]
    text = received
    for name, value in others:
        text = text + (" and " + Arg(name) + f" {value}")
    return UserError(
        argument=argument,
        received=text + f", which left no record of the split {subset.split.name} with "
        f"{counted(subset.split.num_records, 'record')}",
        expected="at least one",
    )


def _chosen(subset: Subset, ids: Sequence[int], missing: NDArray[np.bool_]) -> Subset:
    """Returns `subset` with the classes of its records and their counts, as the index has them."""
    # The model's class for each class id of the dataset, -1 if the class is not read.
    table = np.full(len(subset.dataset.classes), -1, np.int32)
    table[list(ids)] = range(len(ids))
    passes, records, labels = record_labels(subset.dataset, subset.split, subset.filters)
    missing = passes & missing
    passes &= ~missing
    wanted = passes[records] & (table[labels] >= 0)
    records, labels = records[wanted], table[labels[wanted]]
    # A record without a label is read only if no classes were chosen.
    classes = np.where(passes & (subset.class_ids is None), 0, -1).astype(np.int32)
    # A record with several labels gets any of them: only records of one class are balanced.
    classes[records] = labels
    counts = tuple(np.bincount(labels, minlength=len(ids)).tolist())
    return dataclasses.replace(
        subset,
        num_records=int((classes >= 0).sum()),
        class_counts=counts if subset.dataset.has_classes else None,
        record_classes=classes,
        missing_target=int(missing.sum()),
    )


def model_labels(subset: Subset, labels: Labels) -> Labels:
    """Converts labels of the dataset to labels of the model; of several targets the first.

    Class ids, int64 [b], become the model's ids, and labels, float32 [b, classes], the model's
    labels. Values stay as they are.
    """
    if subset.class_ids is None:
        return labels
    if outputs := subset.dataset.outputs:
        first, alone = next(iter(outputs.items()))
        subset = dataclasses.replace(subset, dataset=alone)
        return labels | {first: model_labels(subset, labels[first])}
    import tensorflow as tf

    if subset.dataset.target == "labels":
        return tf.gather(labels, subset.class_ids, axis=1)
    known = {number: place for place, number in enumerate(subset.class_ids or ())}
    # A placeholder has the dataset's label 0, which the model may not know. Its weight is 0, so any
    # class of the model will do. Records of all other unknown classes were filtered out.
    table = [known.get(number, 0) for number in range(len(subset.dataset.classes))]
    return tf.gather(tf.constant(table, tf.int64), labels)


def class_ids(subset: Subset, classes: Sequence[str]) -> tuple[int, ...]:
    """Returns the model's id for each class of `subset`; refuses classes that the model lacks."""
    known = {composed(name): number for number, name in enumerate(classes)}
    unknown = [name for name in subset.classes if composed(name) not in known]
    if unknown:
        remedy = "leave them out by " + Arg("classes")
        if not subset.dataset.label_values and all(name.isdecimal() for name in unknown):
            remedy = "name them by " + Arg("class_names") + " of imageshards adopt"
        why = f"whose classes {some_names(unknown)} are new to the model"
        raise subset.dataset.refused(why, f"some of {some_names(classes)}", remedy)
    return tuple(known[composed(name)] for name in subset.classes)


def known_counts(dataset: DatasetSpec, split: Split) -> tuple[int, ...] | None:
    """Returns the number of records of each class id; None if the manifest does not count them."""
    # The manifest counts the classes of the dataset's own label, not the values of a column.
    if not dataset.classes or dataset.label_values:
        return None
    totals: Counter[str] = Counter()
    for shard in split.shards:
        totals.update(shard.classes)
    return tuple(totals[name] for name in dataset.classes)


def _class_ids(dataset: DatasetSpec, names: Sequence[str]) -> tuple[int, ...]:
    numbered = [*enumerate(dataset.classes)][::-1]
    # Adopted names may have any Unicode form, so "é" may be one or two characters.
    ids = {composed(known): number for number, known in numbered}
    ids |= {known: number for number, known in numbered}
    found = [ids.get(name, ids.get(composed(name), -1)) for name in names]
    if -1 not in found:
        return tuple(found)
    name = names[found.index(-1)]
    near = difflib.get_close_matches(name, dataset.classes, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    hint = about_look_alikes(name, dataset.classes) or hint
    raise UserError(
        argument="classes",
        received=f"{name!r}, which is no class of {dataset.data!r}{hint}",
        expected=f"names among {some_names(dataset.classes, repr)}",
    )


def some_names(names: Sequence[str], shown: Callable[[str], str] = str) -> str:
    """Returns the first names of a list, for people."""
    return ", ".join([*map(shown, names[:8]), *["…"] * (len(names) > 8)])


def _repeated(subset: Subset, counts: tuple[int, ...]) -> Subset:
    empty = [name for name, n in zip(subset.classes, counts, strict=True) if not n]
    if empty:
        remedy = "leave classes out by " + Arg("classes") + ", or use " + Arg("balance", "weights")
        raise UserError(
            argument="balance",
            received=f"'sampling', but the split {subset.split.name} has no record of "
            f"{some_names(empty)} to repeat",
            expected="some of every class",
            remedy=remedy,
        )
    # Each class is read as often as the largest one.
    return dataclasses.replace(subset, num_records=max(counts) * len(counts))


def _check_numbers(
    subset: Subset, column: str, numbers: NDArray[np.float64] | None, argument: str, least: float
) -> None:
    """Refuses numbers of a column that are missing or below `least` in a record that is read.

    `numbers` are float64 [records, k], or None if the index does not have them.
    """
    if numbers is None:
        return
    wrong = ~(np.isfinite(numbers) & (numbers >= least)).all(1)
    if subset.record_classes is not None:
        wrong &= subset.record_classes >= 0
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong)[0])
    others = f", and as little in {int(wrong.sum()) - 1} more" * (int(wrong.sum()) > 1)
    # No comparison finds NaN, but any `>=` is false for NaN and so leaves the record out.
    remedy = f", for example '{column}>={max(least, -1e30):g}'"
    if numbers.shape[1] > 1 or numbers[first, 0] == math.inf:
        remedy = " on another column"
    if argument == "inputs":
        remedy += ", or build again with a number in each"
    value = ",".join(f"{one:g}" for one in numbers[first])
    raise UserError(
        argument=argument,
        received=f"{column!r}, which is {value} in record {first} of the split "
        f"{subset.split.name}{others}",
        expected=f"{'a number' if least < 0 else 'at least 0'} in each record that is read",
        remedy="leave others out by " + Arg("where") + remedy,
    )
