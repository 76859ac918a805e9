"""A build as it would be without `index/`: no difference hash, no rows, no files of them.

    python -m benchmarks.build_without_index --input photos/ --output new_folder/

The flags are those of `imageshards build`, whose processes are forks of this one.
"""

from __future__ import annotations

import sys
from typing import Any

from beam_pipeline.__main__ import main
from beam_pipeline.commit import finalize
from beam_pipeline.images import encode
from imageshards.index import IndexRows


def add_nothing_else(rows: IndexRows, features: Any, num_bytes: int, *_: Any) -> None:
    """Notes what the commit needs of a record: its class and its size."""
    rows.columns["key"].append(None)
    rows.columns["class_name"].append(features["image/class/text"][0].decode())
    rows.columns["num_bytes"].append(num_bytes)


def build_without_index() -> int:
    """Runs a build; returns its exit code."""
    vars(encode)["difference_hash"] = lambda picture: 0
    vars(finalize)["index_table"] = lambda *_: None
    vars(finalize)["write_index"] = lambda *_: None
    type.__setattr__(IndexRows, "add", add_nothing_else)
    return main()


if __name__ == "__main__":
    sys.exit(build_without_index())
