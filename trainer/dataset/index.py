"""The classes of records, and which of them pass `--where`: from a data set's index alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import IndexDamageError, UserError
from imageshards.index import COLUMN_OF, extra_columns, index_schema, read_index, read_shard_index
from imageshards.manifest import MANIFEST_NAME, load_manifest
from trainer.dataset.filters import Filter, parse_filters
from trainer.dataset.spec import DataSet, Split

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
# A float is compared as records hold it: both sides are float32.
_DTYPES = {"int64": "int64", "float32": "float32", "string": "object"}

# Enough to find an order that is not that of the records, too few to be noticed.
_CHECKED_SHARDS = 8
_CHECKED_COLUMNS = ("class_name", "label", "shard", "record")


def record_classes(dataset: DataSet, split: Split, filters: Sequence[str] = ()) -> np.ndarray:
    """The class id of every record of `split`, in the order of its shards, int32; -1 for a record
    that does not pass `filters`.

    Raises:
        UserError: There is no index, or it is damaged, or has labels that are no class; or a
            filter is wrong, or names a feature of which the index has no column.
    """
    import numpy as np  # a data set is opened without it

    parts = dataset.by_part(split)
    return np.concatenate([_classes_of(part, own, filters) for part, own in parts if own.shards])


def _classes_of(dataset: DataSet, split: Split, filters: Sequence[str]) -> np.ndarray:
    import numpy as np

    parsed = parse_filters(filters, dataset.features)
    manifest = load_manifest(dataset.data, "⟦--data⟧", adopted=True)
    column_of = _columns(dataset, manifest)
    for one in parsed:
        if one.feature not in column_of:
            raise UserError(
                f"⟦--where⟧ received a condition on {one.feature}, which the index of "
                f"{dataset.data!r} has no column for; expected one of {', '.join(column_of)}."
            )
    wanted = dict.fromkeys(["label", *(column_of[one.feature] for one in parsed)])
    table = read_index(dataset.data, manifest, split.name, wanted, "⟦--data⟧")
    labels = table["label"].to_numpy() - dataset.label_offset
    if labels.size and not 0 <= labels.min() <= labels.max() < len(dataset.classes):
        raise UserError(
            f"⟦--data⟧ received {dataset.data!r}, whose index has labels from "
            f"{labels.min() + dataset.label_offset} to {labels.max() + dataset.label_offset}; "
            f"expected {len(dataset.classes)} classes from {dataset.label_offset} on, as its "
            "manifest.json says: copy the data set again."
        )
    keep = np.ones(table.num_rows, bool)
    for one in parsed:
        keep &= _passes(one, dataset, table, column_of[one.feature], labels)
    return np.where(keep, labels, -1).astype(np.int32)


def _columns(dataset: DataSet, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Feature → the column of the index that says the same, of features that are there."""
    found = {feature: column for column, feature in extra_columns(manifest["features"]).items()}
    found |= COLUMN_OF
    if dataset.adopted:
        # Others give our names to other things; the index holds what the roles say.
        for name in COLUMN_OF:
            if COLUMN_OF[name] not in ("width", "height"):
                del found[name]
        has_ids = dataset.features[dataset.label_feature].dtype == "int64"
        found[dataset.label_feature] = "label" if has_ids else "class_name"
    return {name: column for name, column in found.items() if name in dataset.features}


def _passes(
    one: Filter, dataset: DataSet, table: pa.Table, column: str, labels: np.ndarray
) -> np.ndarray:
    import numpy as np

    dtype = _DTYPES[dataset.features[one.feature].dtype]
    # A condition on the label means the class id. Null, a text too long for the index, is equal to
    # no text.
    values = labels if column == "label" else table[column].to_numpy().astype(dtype)
    return np.asarray(_COMPARE[one.operator](values, np.array(one.value, dtype)), bool)


def check_class_order(dataset: DataSet, split: Split) -> None:
    """Compares the class ids in the index of some shards with the names that stand beside them.

    A name that is no class of the data set says nothing: others write descriptions there. With a
    damaged index nothing is compared.

    Raises:
        UserError: A record names another class; or its store cannot be used.
    """
    import pyarrow as pa

    manifest = load_manifest(dataset.data, "⟦--data⟧", adopted=True)
    shards = manifest["splits"][split.name]["shards"]
    schema = index_schema(manifest["features"])
    schema = pa.schema([schema.field(name) for name in _CHECKED_COLUMNS])

    def rows(shard: dict[str, object]) -> pa.Table:
        try:
            table = read_shard_index(dataset.data, shard, schema)
        except IndexDamageError:
            return []
        # One row for each pair of a name and an id.
        pairs = table.group_by(["class_name", "label", "shard"]).aggregate([("record", "min")])
        return pairs.to_pylist()

    chosen = shards[:: max(1, -(-len(shards) // _CHECKED_SHARDS))]
    for row in (row for found in storage.map_concurrently(rows, chosen) for row in found):
        label, text = row["label"] - dataset.label_offset, row["class_name"]
        if text not in dataset.classes or dataset.classes.index(text) == label:
            continue
        named = dataset.classes[label] if 0 <= label < len(dataset.classes) else "no class"
        again = "describe it again by imageshards adopt" if dataset.adopted else "build it again"
        raise UserError(
            f"⟦--data⟧ received {dataset.data!r}, whose class {label} is {named!r}, but record "
            f"{row['record_min']} of {row['shard']} has this id and is of the class {text!r}; "
            f"expected the classes in the order that the records were written with: put back the "
            f"classes of {MANIFEST_NAME}, or {again}."
        )
