from .batching import BatchRefs
from .plan import ShardPlan
from .refs import ImageRef, RefBatch, ShardUnit
from .transforms import AssignSplits, PlannedShards, PlanShards

__all__ = [
    "AssignSplits",
    "BatchRefs",
    "ImageRef",
    "PlanShards",
    "PlannedShards",
    "RefBatch",
    "ShardPlan",
    "ShardUnit",
]
