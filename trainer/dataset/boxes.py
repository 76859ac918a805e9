"""Reads the bounding boxes of records as an input or a target."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from imageshards import storage
from imageshards.errors import Arg, Text, UserError
from imageshards.index import MAX_TEXT_BYTES, read_index
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, BOX_LABEL_FEATURE
from imageshards.text import class_sort_key
from imageshards.tfrecord import RecordError
from trainer.dataset.index import columns_of
from trainer.dataset.spec import BOXES, Boxes, DatasetSpec, ModelInputs


def check_sides(inputs: ModelInputs, augment: object) -> None:
    """Refuses single sides of boxes as inputs if the pictures are cropped or flipped.

    Raises:
        UserError: `inputs` has a side of a box, which would not follow the pixels.
    """
    sides = [name for name in inputs.features if name in BOX_FEATURES]
    # Without augmentation, pictures are still cut if the model's pictures have another aspect.
    own = None if inputs.image.varies else inputs.image.size
    cuts = inputs.eval_crop < 1 or own is None or own[0] * inputs.size[1] != own[1] * inputs.size[0]
    if not sides or (augment == "none" and not cuts):
        return
    why: Text = Arg("augment") + " moves"
    if augment == "none":
        why = Arg("image_size") + " or " + Arg("eval_crop") + " cuts"
    raise UserError(
        argument="inputs",
        received=f"{sides[0]}, the side of a box, but " + why + " the pictures without the side",
        expected=f"{BOXES}, which has all sides and labels, and follows the pixels",
    )


def _boxes_of(dataset: DatasetSpec, argument: str, received: str, min_visibility: float) -> Boxes:
    """Returns how boxes are read; `argument` is `inputs` or `target`, and received `received`."""
    lists = {n: s.dtype for n, s in dataset.features.items() if s.shape is None}
    absent = [name for name in BOX_FEATURES if lists.get(name) != "float32"]
    if absent:
        raise UserError(
            argument=argument,
            received=f"{received!r}, but records have no {absent[0]}, a list of floats",
            expected=f"a dataset with {', '.join(BOX_FEATURES)}",
            remedy="see 'Bounding boxes' in the guide of columns",
        )
    is_input = argument == "inputs"
    # Labels are the records' ids, else their texts, numbered over all splits, else 0.
    if lists.get(BOX_LABEL_FEATURE) == "int64":
        return Boxes(BOX_LABEL_FEATURE, (), min_visibility, is_input)
    if lists.get(BOX_CLASS_FEATURE) == "string":
        return Boxes(BOX_CLASS_FEATURE, _class_names(dataset), min_visibility, is_input)
    return Boxes(None, (), min_visibility, is_input)


def wanted_boxes(dataset: DatasetSpec, names: Sequence[str], min_visibility: float) -> Boxes | None:
    """Returns how boxes are read if they are an input or the target, else None.

    Raises:
        UserError: Boxes are both an input and the target, records have no boxes, or the name of a
            class is too long for the index.
    """
    received = ",".join(names)
    if not any(one.target == "boxes" for one in dataset.targets):
        return _boxes_of(dataset, "inputs", received, min_visibility) if BOXES in names else None
    if BOXES in names:
        raise UserError(
            argument="inputs",
            received=f"{received!r}, but {BOXES} is the target",
            remedy=f"leave {BOXES} out",
        )
    return _boxes_of(dataset, "target", BOXES, min_visibility)


def _class_names(dataset: DatasetSpec) -> tuple[str, ...]:
    """Returns the classes of boxes in all splits, sorted."""
    import pyarrow.compute as pc

    from trainer.dataset.source import RecordSource

    column = columns_of(dataset)[BOX_CLASS_FEATURE]
    names: set[str | None] = set()
    for split in dataset.splits.values():
        table = read_index(dataset.data, dataset.manifest, split.name, [column], "data")
        values = table[column].combine_chunks()
        names.update(pc.unique(pc.list_flatten(values)).to_pylist())
        # The index has null instead of a list that is too long; these records are read.
        long = values.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist()
        if not long:
            continue
        source = RecordSource(dataset, split, [BOX_CLASS_FEATURE])

        def texts(number: int, source: RecordSource = source) -> set[str]:
            # Damaged records are left to the reader, which counts and names them.
            with contextlib.suppress(RecordError):
                found = source[number][BOX_CLASS_FEATURE].tolist()
                return {text.decode("utf-8", "replace") for text in found}
            return set()

        names.update(*storage.map_concurrently(texts, long))
    # A null inside a list is a name that is too long.
    if None in names:
        raise UserError(
            argument="data",
            received=f"{dataset.data!r}, where a name in {BOX_CLASS_FEATURE} has more than "
            f"{MAX_TEXT_BYTES} bytes",
            expected="shorter names",
            remedy="build the dataset again",
        )
    return tuple(sorted(filter(None, names), key=class_sort_key))
