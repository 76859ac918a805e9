"""Reads `data.source("train")` by a loader of others, with workers, and holds it against
the index and `source[i]`:

    python -m tests.support.source_loaders torch-fork|torch-spawn|grain DIR

Prints the keys of one epoch, as JSON.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

import imageshards as ims


def by_torch(source: Any, method: str) -> Iterable[dict[str, Any]]:
    from torch.utils.data import DataLoader

    workers = {"num_workers": 2, "multiprocessing_context": method}
    loader = DataLoader(source, 4, shuffle=True, collate_fn=list, **workers)
    return (record for batch in loader for record in batch)


def by_grain(source: Any) -> Iterable[dict[str, Any]]:
    import grain.python as grain

    order = {"shuffle": True, "num_epochs": 1, "seed": 1}
    sampler = grain.IndexSampler(len(source), shard_options=grain.NoSharding(), **order)
    return grain.DataLoader(data_source=source, sampler=sampler, worker_count=2)


def main(loader: str, directory: str) -> None:
    data = ims.open(directory)
    source = data.source("train")
    assert len(source) and source[0]  # this process has a client of its own for the store
    assert not {"tensorflow", "apache_beam"} & {*sys.modules}
    name, _, method = loader.partition("-")
    keys = []
    numbers = {key: i for i, key in enumerate(data.index("train")["key"].to_pylist())}
    for record in by_torch(source, method) if name == "torch" else by_grain(source):
        keys.append(record["image/filename"].decode())
        expected = source[numbers[keys[-1]]]
        assert record.keys() == expected.keys()
        for feature, values in expected.items():
            assert np.array_equal(np.asarray(record[feature]), np.asarray(values)), feature
    print(json.dumps(keys))


if __name__ == "__main__":
    main(*sys.argv[1:])
