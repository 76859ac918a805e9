"""Whether class ids mean the classes that the records themselves name."""

from __future__ import annotations

from imageshards import storage
from imageshards.errors import IndexDamageError, UserError
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import MANIFEST_NAME, load_manifest
from trainer.dataset.spec import DataSet, Split

# Enough to find an order that is not that of the records, too few to be noticed.
_SHARDS = 8
_COLUMNS = ("class_name", "label", "shard", "record")


def check_class_order(dataset: DataSet, split: Split) -> None:
    """Compares the class ids in the index of some shards with the names that stand beside them.

    A name that is no class of the data set says nothing: others write descriptions there. With a
    damaged index nothing is compared.

    Args:
        dataset: Where `split` belongs.
        split: Whose index is read.

    Raises:
        UserError: A record names another class; or its store cannot be used.
    """
    import pyarrow as pa  # a data set is opened without it

    manifest = load_manifest(dataset.data, "⟦--data⟧", adopted=True)
    shards = manifest["splits"][split.name]["shards"]
    schema = index_schema(manifest["features"])
    schema = pa.schema([schema.field(name) for name in _COLUMNS])

    def rows(shard: dict[str, object]) -> pa.Table:
        try:
            table = read_shard_index(dataset.data, shard, schema)
        except IndexDamageError:
            return []
        # One row for each pair of a name and an id.
        pairs = table.group_by(["class_name", "label", "shard"]).aggregate([("record", "min")])
        return pairs.to_pylist()

    chosen = shards[:: max(1, -(-len(shards) // _SHARDS))]
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
