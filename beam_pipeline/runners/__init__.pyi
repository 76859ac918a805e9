from .flags import LOCAL_RUNNERS as LOCAL_RUNNERS
from .flags import GivenFlags as GivenFlags
from .flags import runner_name as runner_name
from .runner import Build as Build
from .runner import Runner as Runner
from .runner import check_flags as check_flags
from .runner import choose as choose
from .runner import lost_a_worker as lost_a_worker

__all__ = [
    "LOCAL_RUNNERS",
    "Build",
    "GivenFlags",
    "Runner",
    "check_flags",
    "choose",
    "lost_a_worker",
    "runner_name",
]
