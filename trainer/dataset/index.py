"""Class counts from a data set's index, where reading every record would say the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from imageshards.errors import IndexDamageError
from imageshards.index import COLUMN_OF, extra_columns, read_index
from imageshards.manifest import load_manifest
from trainer.dataset.spec import DataSet, Split
from trainer.dataset.subset import COMPARE, parse_filters

# A float is compared as the reader does it: both sides are float32.
_DTYPES = {"int64": "int64", "float32": "float32", "string": "object"}


def indexed_class_counts(
    dataset: DataSet, split: Split, filters: Sequence[str]
) -> tuple[int, ...] | None:
    """The records of `split` that pass `filters`, per class id of the data set.

    None where the records have to be read: there is no index, or it does not hold a feature that a
    filter names, or not of every record; or a label is no class, which reading tells more about. An
    index that is damaged is told on stderr.

    Args:
        dataset: Where the split belongs.
        split: The split.
        filters: As `--where` gives them, see `trainer.dataset.subset`.

    Raises:
        UserError: A filter is wrong.
    """
    if not dataset.has_index or split != dataset.splits.get(split.name):
        return None
    import numpy as np  # a data set is opened without it

    parsed = parse_filters(filters, dataset.features)
    manifest = load_manifest(dataset.data, "⟦--data⟧", adopted=True)
    column_of = {v: k for k, v in extra_columns(manifest["features"]).items()}
    if dataset.adopted:  # its records may have other features of these names
        has_ids = dataset.features[dataset.label_feature].dtype == "int64"
        column_of[dataset.label_feature] = "label" if has_ids else "class_name"
    else:
        column_of |= COLUMN_OF
    if not {one.feature for one in parsed} <= column_of.keys():
        return None
    columns = list(dict.fromkeys(["label", *(column_of[one.feature] for one in parsed)]))
    try:
        table = read_index(dataset.data, manifest, split.name, columns, "⟦--data⟧")
    except IndexDamageError as e:
        print(f"the records are read instead of their index: {e}", file=sys.stderr)
        return None
    if any(table[name].null_count for name in columns):
        return None
    labels = table["label"].to_numpy() - dataset.label_offset
    if labels.size and not 0 <= labels.min() <= labels.max() < len(dataset.classes):
        return None
    keep = np.ones(table.num_rows, bool)
    for one in parsed:
        dtype = _DTYPES[dataset.features[one.feature].dtype]
        values = table[column_of[one.feature]].to_numpy().astype(dtype)
        if column_of[one.feature] == "label":  # a condition on it means the class id
            values = labels
        keep &= COMPARE[one.operator](values, np.array(one.value, dtype))
    return tuple(np.bincount(labels[keep], minlength=len(dataset.classes)).tolist())
