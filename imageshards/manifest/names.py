"""The names of a dataset: its files and folders, its splits, and the features of its records."""

from __future__ import annotations

import re

# Files and folders of a dataset.
MANIFEST_NAME = "manifest.json"
TRANSFORM_NAME = "transform"
QUARANTINE_NAME = "quarantine"
REJECTS_NAME = "rejects.jsonl"
REPORT_NAME = "report"
INDEX_NAME = "index"
CROISSANT_NAME = "croissant.json"
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

# The number of labels per image, which `build --label` sets.
ONE, NONE, SEVERAL = "one", "none", "several"

# Columns with this prefix hold an entry for each box: its class, and its four sides from 0 to 1.
OBJECT_PREFIX = "image/object/"
BOX_CLASS_FEATURE = f"{OBJECT_PREFIX}class/text"
BOX_LABEL_FEATURE = f"{OBJECT_PREFIX}class/label"
BOX_FEATURES = tuple(f"{OBJECT_PREFIX}bbox/{side}" for side in ("xmin", "xmax", "ymin", "ymax"))

FRAME_BYTES = 16  # The framing of a record, which is all of an empty record.
