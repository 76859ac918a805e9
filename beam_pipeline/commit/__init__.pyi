from . import staging as staging
from .data_set import CommitSpec as CommitSpec
from .staging import OutputState as OutputState
from .transforms import CommitShards as CommitShards

__all__ = ["CommitShards", "CommitSpec", "OutputState", "staging"]
