from .batching import BatchRefs
from .plan import ShardPlan
from .refs import ImageRef, RefBatch, ShardUnit
from .transforms import AssignSplits, PlannedShards, PlanShards, SampleImages

__all__ = [
    "AssignSplits",
    "BatchRefs",
    "ImageRef",
    "PlanShards",
    "PlannedShards",
    "RefBatch",
    "SampleImages",
    "ShardPlan",
    "ShardUnit",
]
