"""`ims.evaluate` several times in one process: `python -m tests.support.evaluate_run MODEL DATA`.

Prints what two replicas find with two batch sizes, what is found in their scope, and what one
replica finds, as a JSON list. TensorFlow allows one strategy per process.
"""

import json
import sys

import imageshards as ims
from tests.support.errors import refused


def main(model: str, data: str) -> None:
    found = [ims.evaluate(model, data, batch_size=size, replicas=2) for size in (4, 6)]
    from trainer.models.strategy import shared_strategy

    with shared_strategy(2, 4).scope():
        found.append(ims.evaluate(model, data, batch_size=4))
        with refused("replicas", "1 in the scope of a strategy of 2"):
            ims.evaluate(model, data, batch_size=4, replicas=1)
    found.append(ims.evaluate(model, data, batch_size=5))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
