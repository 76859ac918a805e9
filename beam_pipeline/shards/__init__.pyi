from .result import Reject as Reject
from .result import ShardResult as ShardResult
from .result import ShardStats as ShardStats
from .result import ShardSummary as ShardSummary
from .sink import BalancedSink as BalancedSink
from .transforms import WriteBalancedTFRecord as WriteBalancedTFRecord
from .transforms import WrittenShards as WrittenShards

__all__ = [
    "BalancedSink",
    "Reject",
    "ShardResult",
    "ShardStats",
    "ShardSummary",
    "WriteBalancedTFRecord",
    "WrittenShards",
]
