"""Bounds for files that may come from a stranger; each is checked where its file enters."""

# Links to folders that one listing follows; few links could otherwise make millions of paths.
MAX_FOLLOWED_LINKS = 100_000

# A protobuf message ends at 2 GiB, so no record was longer on purpose.
MAX_RECORD_BYTES = 2**31 - 1
# File systems allow names of 255 bytes, and a file has a longer name while it is written.
MAX_NAME_BYTES = 200
MAX_DIMENSIONS = 32  # NumPy 1 allows no more.
MAX_SIDE_PX = 65_535  # the limit of a JPEG

# The names of the shards of a split have five digits.
MAX_SHARDS = 99_999
MAX_CLASSES = 1_000_000
# Figures of a page and counts: one for each class of each split.
MAX_CLASSES_OF_SPLITS = 10_000_000
# A file of JSON is read as a whole, and each of its levels is a call of Python.
MAX_JSON_BYTES = 1 << 30
MAX_JSON_DEPTH = 64
MAX_LINE_BYTES = 1 << 20

# Rows of an index for each byte of its file; even the keys of equal pictures take a byte for three.
MAX_ROWS_PER_BYTE = 16
# Values and bytes that a cell of an index has on average: of a number, of a text, of a list, and of
# a list of labels.
MAX_NUMBER_CELL = (1, 16)
MAX_TEXT_CELL = (1, 4096)
MAX_LIST_CELL = (64, 64 * 260)
MAX_LABELS_CELL = (4096, 1 << 16)
# Parquet's own bytes in a column of an index.
MAX_COLUMN_OVERHEAD_BYTES = 1 << 20
