from .columns.transforms import AnalyseColumns
from .commit import CommitShards, CommitSpec
from .inputs.transforms import ListImages
from .options import ImageOptions, InputOptions, PlanOptions
from .planning import AssignSplits, BatchRefs, ImageRef, PlanShards, RefBatch, ShardUnit
from .shards import Reject, WriteBalancedTFRecord, WrittenShards

__all__ = [
    "AnalyseColumns",
    "AssignSplits",
    "BatchRefs",
    "CommitShards",
    "CommitSpec",
    "ImageOptions",
    "ImageRef",
    "InputOptions",
    "ListImages",
    "PlanOptions",
    "PlanShards",
    "RefBatch",
    "Reject",
    "ShardUnit",
    "WriteBalancedTFRecord",
    "WrittenShards",
]
