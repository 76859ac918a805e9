"""The plan's own steps, one after the other, for any number of references.

    python -m benchmarks.scale_plan --images 10000000

The functions are those that the pipeline's workers call; what a runner would shuffle goes
through files and is counted. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import pathlib
import pickle
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from apache_beam.coders import FastPrimitivesCoder, registry

from beam_pipeline.inputs import duplicate_keys
from beam_pipeline.options import PlanOptions
from beam_pipeline.planning import plan
from beam_pipeline.planning import transforms as planning
from beam_pipeline.planning.batching import BatchByKeyFn, SumCountsFn
from beam_pipeline.planning.refs import ImageRef, RefBatch
from benchmarks.scale_refs import Synthetic
from benchmarks.scale_shuffle import DiskList, DiskShuffle, Traffic

# What a picture of 256 px and quality 90 becomes.
RECORD_BYTES = 20_000.0
REF_BYTES = 70  # to choose the number of files


@dataclasses.dataclass
class Measured:
    """What one plan took.

    Attributes:
        source: What was planned.
        shards: Of all splits.
        cpu_sec: Step → CPU seconds; steps end where a shuffle begins.
        traffic: Shuffle or materialised collection → what went through.
        side_bytes: Side input → encoded bytes.
        peak_rss_bytes: Of the process that did everything.
    """

    source: str
    images: int
    shards: int
    cpu_sec: dict[str, float]
    traffic: dict[str, Traffic]
    side_bytes: dict[str, int]
    peak_rss_bytes: int


class _Clock:
    """CPU seconds by step."""

    def __init__(self) -> None:
        self.cpu_sec: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.cpu_sec[name] = self.cpu_sec.get(name, 0.0) + time.process_time() - begun


class PlanOnPaper:
    """`PlanShards` with `RefuseDuplicateKeys`, by hand; see `run`."""

    def __init__(self, source: Synthetic, options: PlanOptions, folder: pathlib.Path):
        self._source = source
        self._options = options
        self._folder = folder
        self._clock = _Clock()
        self._traffic: dict[str, Traffic] = {}
        self._side_bytes: dict[str, int] = {}

    def run(self) -> Measured:
        """Plans everything."""
        batches, layout = self._list()
        self._check_keys(batches)
        buckets = self._shuffle("GroupBuckets", tuple[str, int, int])
        with self._clock.step("KeyByBucket"):
            self._gather(
                planning.key_by_bucket, batches.batches(), buckets, layout, self._options.salt
            )
        batches.remove()
        in_order, keys, ranks = self._sort(buckets)
        shards = self._shuffle("GroupShards", tuple[str, int])
        with self._clock.step("AssignToShards"):
            pairs = zip(keys, in_order.batches(), strict=True)
            self._gather(planning.assign_to_shards, pairs, shards, layout, ranks)
        in_order.remove()
        self._traffic["GroupShards"] = shards.traffic
        self._make_units(shards, layout)
        peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Measured(
            str(self._source), self._source.images, sum(layout.num_shards.values()),
            self._clock.cpu_sec, self._traffic, self._side_bytes, peak_rss_bytes,
        )  # fmt: skip

    def _shuffle(self, name: str, key: Any) -> DiskShuffle:
        expected = self._source.images * REF_BYTES
        return DiskShuffle(self._folder / name, registry.get_coder(key), expected)

    def _gather(
        self,
        keyed: Callable[..., Iterable[tuple[Any, ImageRef]]],
        elements: Iterable[Any],
        target: DiskShuffle,
        *sides: Any,
    ) -> None:
        """One bundle for all: batches are sent when `batching.MAX_HELD_REFS` references wait."""
        fn = BatchByKeyFn(keyed)
        fn.start_bundle()
        for element in elements:
            for key, hand in fn.process(element, *sides):
                target.put(key, hand)
        for windowed in fn.finish_bundle():
            target.put(*windowed.value)

    def _list(self) -> tuple[DiskList, plan.ShardPlan]:
        """Splits are drawn, labels counted and a sample drawn behind the listing."""
        batches = DiskList(self._folder / "batches")
        counter, counts, sample = SumCountsFn(), SumCountsFn().create_accumulator(), RefBatch([])
        for listed in self._source.batches():
            with self._clock.step("Split, CountLabels, Sample"):
                batch = planning.assign_splits(listed, self._options)
                counter.add_input(counts, planning.count_labels(batch))
                sample = planning.sample_of([sample, batch], self._options.salt)
                batches.put(batch)
        with self._clock.step("MakePlan"):
            layout = plan.make_plan(counts, self._options, RECORD_BYTES)
        self._traffic["Spread"] = batches.traffic
        self._side_bytes["label counts"] = len(FastPrimitivesCoder().encode(counts))
        self._side_bytes["layout"] = len(FastPrimitivesCoder().encode(layout))
        return batches, layout

    def _check_keys(self, batches: DiskList) -> None:
        """Of manifests only: keys of folders are unique by themselves."""
        traffic = self._traffic["GroupHashes, manifests only"] = Traffic()
        paths: dict[int, pathlib.Path] = {}
        fn = duplicate_keys._HashKeysFn()
        fn.start_bundle()

        def put(bucket: int, hashes: bytes) -> None:
            traffic.elements += 1
            traffic.size_bytes += len(hashes) + 2
            path = paths.setdefault(bucket, self._folder / f"hashes-{bucket}")
            with path.open("ab") as file:
                file.write(hashes)

        with self._clock.step("UniqueKeys, manifests only"):
            for batch in batches.batches():
                for cut in fn.process(batch, self._source.images):
                    put(*cut)
            for windowed in fn.finish_bundle():
                put(*windowed.value)
            found = (duplicate_keys.equal_hashes([path.read_bytes()]) for path in paths.values())
            suspects = duplicate_keys.suspects_of(found)
        if suspects:
            raise RuntimeError("two synthetic keys have one hash")
        traffic.keys = len(paths)
        traffic.largest_bytes = max(path.stat().st_size for path in paths.values())
        traffic.largest_refs = traffic.largest_bytes // 8

    def _sort(self, buckets: DiskShuffle) -> tuple[DiskList, list[Any], dict[Any, int]]:
        in_order, keys = DiskList(self._folder / "sorted"), []
        counter, sizes = SumCountsFn(), SumCountsFn().create_accumulator()
        with self._clock.step("SortBuckets"):
            for key, found in buckets.groups():
                batch = RefBatch(planning.sort_by_hash(found, self._options.salt))
                counter.add_input(sizes, {key: len(batch)})
                keys.append(key)
                in_order.put(batch)
        self._traffic["GroupBuckets"] = buckets.traffic
        self._traffic["sorted buckets"] = in_order.traffic
        with self._clock.step("BucketRanks"):
            ranks = plan.bucket_ranks(sizes)
        self._side_bytes["ranks"] = len(FastPrimitivesCoder().encode(ranks))
        return in_order, keys, ranks

    def _make_units(self, shards: DiskShuffle, layout: plan.ShardPlan) -> None:
        traffic = self._traffic["Spread of units"] = Traffic()
        images = 0
        with self._clock.step("MakeUnits"):
            for shard in shards.groups():
                unit = planning.make_unit(shard, layout, self._options)
                size_bytes = len(pickle.dumps(unit, protocol=5))
                traffic.elements += 1
                traffic.size_bytes += size_bytes
                traffic.largest_bytes = max(traffic.largest_bytes, size_bytes)
                traffic.largest_refs = max(traffic.largest_refs, len(unit.refs))
                images += len(unit.refs)
        if images != self._source.images:
            raise RuntimeError(f"{images} images in units of {self._source.images}")


def main(argv: Sequence[str] | None = None) -> int:
    """Plans a synthetic input and prints what it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_plan")
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--num_shards", type=int, help="of each split (default: of 128 MB)")
    parser.add_argument("--work", type=pathlib.Path, help="folder for files (default: temporary)")
    args = parser.parse_args(argv)
    gc.set_threshold(100_000)  # as a build does
    shards = {"*": args.num_shards} if args.num_shards else {}
    source = Synthetic(args.images, args.classes, args.shuffled)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="scale-", dir=args.work))
    try:
        found = PlanOnPaper(source, PlanOptions(num_shards=shards), folder).run()
    finally:
        shutil.rmtree(folder)
    print(json.dumps(dataclasses.asdict(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
