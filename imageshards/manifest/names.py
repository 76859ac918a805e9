"""The names of the files, splits and features of a dataset."""

from __future__ import annotations

import re
from collections.abc import Collection

from imageshards.errors import UserError

# Files and folders of a dataset.
MANIFEST_NAME = "manifest.json"
TRANSFORM_NAME = "transform"
QUARANTINE_NAME = "quarantine"
REJECTS_NAME = "rejects.jsonl"
REPORT_NAME = "report"
INDEX_NAME = "index"
CROISSANT_NAME = "croissant.json"
TFDS_FEATURES_NAME = "features.json"
TFDS_INFO_NAME = "dataset_info.json"
DUPLICATES_NAME = "duplicates"
PAGE_NAME = "index.html"  # in the folder of the report
# Only an unfinished build has this folder in its output.
STAGING_NAME = ".staging"
LOCK_NAME = "lock"  # in the staging folder; the job that writes the output holds it
REPLACED_NAME = "replaced"  # in the staging folder; the dataset that a build replaces

# A user who asks for one name of a line accepts any name of that line. `test` is no name for
# validation: a test split measures a model that was chosen without the test split.
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("validation", "val", "valid")
# Folders and files with these names hold a split.
SPLIT_NAMES = {
    *TRAIN_NAMES, *VALIDATION_NAMES, "dev", "eval", "evaluation", "test", "testing",
}  # fmt: skip

# The name of a split becomes part of file names.
SPLIT_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
SHARD_NAME = re.compile(r"(\w+)-(\d{5})-of-(\d{5})\.tfrecord")
"""Split, number of the shard, number of shards."""

IMAGE_FEATURE = "image/encoded"
LABEL_FEATURE = "image/class/label"
LABELS_FEATURE = "image/class/labels"
CLASS_FEATURE = "image/class/text"
FILENAME_FEATURE = "image/filename"
SHA256_FEATURE = "image/key/sha256"


def tfds_labels_name(feature: str) -> str:
    """Returns the name of the file in which TFDS keeps the class names of a feature."""
    return f"{feature.replace('/', '.')}.labels.txt"


# A dataset consists of these folders and files, of its manifest, and of shards (`SHARD_NAME`). A
# build with --overwrite removes all of them that it does not write again.
DATASET_FOLDERS = (INDEX_NAME, TRANSFORM_NAME, QUARANTINE_NAME, REPORT_NAME)
COMPANION_NAMES = (
    CROISSANT_NAME, TFDS_FEATURES_NAME, TFDS_INFO_NAME,
    tfds_labels_name(LABEL_FEATURE), tfds_labels_name(LABELS_FEATURE),
)  # fmt: skip

# The number of labels per image, which `build --label` sets.
ONE, NONE, SEVERAL = "one", "none", "several"

# Columns with this prefix hold an entry for each box: its class, and its four sides from 0 to 1.
OBJECT_PREFIX = "image/object/"
BOX_CLASS_FEATURE = f"{OBJECT_PREFIX}class/text"
BOX_LABEL_FEATURE = f"{OBJECT_PREFIX}class/label"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))

# Remedies for a damaged dataset.
BUILD_AGAIN = "build the dataset again by imageshards build --overwrite"
ADOPT_AGAIN = "describe the TFRecords again by imageshards adopt"

FRAME_BYTES = 16  # The framing of a record, which is all of an empty record.


def find_split(name: str, splits: Collection[str], argument: str) -> str:
    """Returns the split of this name, or of a name that means the same (`val`, `validation`).

    Raises:
        UserError: No split has the name; the error names `argument`.
    """
    names = next((names for names in (TRAIN_NAMES, VALIDATION_NAMES) if name in names), ())
    known = (one for one in (name, *names) if isinstance(one, str) and one in splits)
    found = next(known, None)
    if found is None:
        expected = f"one of {', '.join(splits) or 'none'}"
        raise UserError(argument=argument, received=repr(name), expected=expected)
    return found
