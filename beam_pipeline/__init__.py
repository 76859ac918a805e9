"""Turns images into balanced, reproducible TFRecord shards by Apache Beam.

`imageshards build` runs the whole job. Its transforms may be used in any pipeline, in this order:
`ListImages`, `AssignSplits`, `AnalyseColumns`, `PlanShards`, `WriteBalancedTFRecord`, and
`CommitShards`, which makes a dataset of the written shards.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from beam_pipeline import beam_files as _beam_files
from imageshards import storage as _storage

if TYPE_CHECKING:
    from beam_pipeline.columns.transforms import AnalyseColumns as AnalyseColumns
    from beam_pipeline.commit.dataset import CommitSpec as CommitSpec
    from beam_pipeline.commit.transforms import CommitShards as CommitShards
    from beam_pipeline.inputs.listing import schema_of as schema_of
    from beam_pipeline.inputs.selection import SelectImages as SelectImages
    from beam_pipeline.inputs.transforms import BatchRefs as BatchRefs
    from beam_pipeline.inputs.transforms import ListImages as ListImages
    from beam_pipeline.options import ColumnSpec as ColumnSpec
    from beam_pipeline.options import ImageOptions as ImageOptions
    from beam_pipeline.options import InputOptions as InputOptions
    from beam_pipeline.options import PlanOptions as PlanOptions
    from beam_pipeline.options import ShardOptions as ShardOptions
    from beam_pipeline.options import UrlOptions as UrlOptions
    from beam_pipeline.planning.refs import ImageRef as ImageRef
    from beam_pipeline.planning.refs import RefBatch as RefBatch
    from beam_pipeline.planning.refs import ShardUnit as ShardUnit
    from beam_pipeline.planning.strata import SampleImages as SampleImages
    from beam_pipeline.planning.transforms import AssignSplits as AssignSplits
    from beam_pipeline.planning.transforms import PlanShards as PlanShards
    from beam_pipeline.shards.transforms import ReadRejects as ReadRejects
    from beam_pipeline.shards.transforms import WriteBalancedTFRecord as WriteBalancedTFRecord
    from imageshards.manifest.file import Reject as Reject


# The module that defines each public name, as in the imports above.
_HOMES = {
    "columns.transforms": ["AnalyseColumns"],
    "commit.dataset": ["CommitSpec"],
    "commit.transforms": ["CommitShards"],
    "inputs.listing": ["schema_of"],
    "inputs.selection": ["SelectImages"],
    "inputs.transforms": ["BatchRefs", "ListImages"],
    "options": [
        "ColumnSpec", "ImageOptions", "InputOptions", "PlanOptions", "ShardOptions", "UrlOptions",
    ],
    "planning.refs": ["ImageRef", "RefBatch", "ShardUnit"],
    "planning.strata": ["SampleImages"],
    "planning.transforms": ["AssignSplits", "PlanShards"],
    "shards.result": ["Reject"],
    "shards.transforms": ["ReadRejects", "WriteBalancedTFRecord"],
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]

# `storage` calls this for the first path with an unknown scheme, so Beam is not imported now.
_storage.extend(_beam_files.new_backend)


def __getattr__(name: str) -> Any:
    # A name is imported when it is used, so `--help` and a wrong flag need not wait for Beam.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
