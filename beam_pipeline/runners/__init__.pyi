from .defaults import LOCAL_RUNNERS as LOCAL_RUNNERS
from .defaults import Given as Given
from .defaults import runner_name as runner_name
from .runner import Build as Build
from .runner import Runner as Runner
from .runner import lost_a_worker as lost_a_worker
from .select import check_flags as check_flags
from .select import choose as choose

__all__ = [
    "LOCAL_RUNNERS",
    "Build",
    "Given",
    "Runner",
    "check_flags",
    "choose",
    "lost_a_worker",
    "runner_name",
]
