"""`imageshards train`, killed by a real signal right after a given step.

python -m tests.support.killed_trainer SIGNAL STEP --data … (the trainer's own flags)
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from trainer.imports import quiet_import


def main() -> int:
    signum = signal.Signals[sys.argv[1]]
    step = int(sys.argv[2])
    with quiet_import():
        from trainer.training import loop

    train = loop.Loop._train

    def killed(self: Any) -> Any:
        logs = train(self)
        if self.step + 1 == step:
            os.kill(os.getpid(), signum)
        return logs

    setattr(loop.Loop, "_train", killed)  # noqa: B010
    from trainer.__main__ import main as trainer_main

    return trainer_main(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
