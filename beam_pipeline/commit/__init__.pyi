from . import staging as staging
from .data_set import TRANSFORM as TRANSFORM
from .data_set import CommitSpec as CommitSpec
from .staging import OutputState as OutputState
from .transforms import CommitShards as CommitShards

__all__ = ["TRANSFORM", "CommitShards", "CommitSpec", "OutputState", "staging"]
