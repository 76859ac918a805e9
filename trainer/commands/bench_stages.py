"""The reader built up to each of its stages, and the speed of each."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from imageshards.progress import progress_bar
from trainer.augment.augmentation import Augmentation
from trainer.augment.decode import Pictures, batch_pictures
from trainer.dataset.parse import batch_parser
from trainer.dataset.spec import ModelInputs, ReadOptions, Subset
from trainer.dataset.subset import part_numbers
from trainer.reader import order, pipeline
from trainer.training.summary import wait_for_idle_cores

LIMIT = "limit"

# Every stage is measured this often, in turn with the others, so that a moment in which the
# machine is slow affects all of them.
ROUNDS = 5
WARM_UP_SEC = 1.0
# Encoded pictures that are kept in memory to measure the limit of decoding.
LIMIT_BYTES = 64 * 1024 * 1024
LIMIT_RECORDS = 4096


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a dataset is.

    Attributes:
        images_per_sec: Of elapsed time.
        cpu_usec: CPU time of all threads per image, in microseconds.
    """

    images_per_sec: float
    cpu_usec: float

    @property
    def usec(self) -> float:
        """Elapsed microseconds per image."""
        return 1e6 / self.images_per_sec

    @property
    def busy_cores(self) -> float:
        """Cores at work, on average."""
        return self.cpu_usec * self.images_per_sec / 1e6


def stage_streams(
    subset: Subset,
    read_options: ReadOptions,
    seed: int,
    batch_size: int,
    shipped: ModelInputs,
    augmentation: Augmentation,
) -> dict[str, tf.data.Dataset]:
    """Endless datasets: the reader up to each stage, and the limit of decoding.

    Args:
        subset: What is read.
        read_options: How.
        seed: Of the order.
        batch_size: Global batch.
        shipped: What the reader makes: the model's inputs, perhaps at another size.
        augmentation: Decodes the pictures and, on the host, changes them.

    Returns:
        By name and in this order: read, parse, decode, augment (where the host changes
        pictures), batch; last `LIMIT`: the pictures of the whole reader, decoded, cropped and
        resized from bytes that are in memory already.
    """
    stream = order.training_records(subset, read_options, seed)
    numbered = stream.batch(batch_size, drop_remainder=True).enumerate()
    parse = batch_parser(subset.dataset, shipped)

    def parsed(number: Any, batch: Any) -> Any:
        found = parse(batch[0], part_numbers(subset, batch[1]))
        position = number * batch_size + tf.range(batch_size, dtype=tf.int64)
        return found.encoded, position, found.label, found.inputs

    def with_pictures(pictures: Pictures) -> Callable[..., Any]:
        def decoded(number: Any, batch: Any) -> Any:
            encoded, position, label, inputs = parsed(number, batch)
            return pictures(encoded, position), label, inputs

        return decoded

    streams = {
        "read": _ahead(numbered, read_options),
        "parse": _mapped(numbered, parsed, read_options),
    }
    on_host = augmentation.level != "none" and augmentation.augment_on == "host"
    if on_host:
        plain = batch_pictures(shipped.image, _own_size(shipped))
        streams["decode"] = _mapped(numbered, with_pictures(plain), read_options)
    last = "augment" if on_host else "decode"
    pictures = with_pictures(augmentation.pictures)
    streams[last] = _mapped(numbered, pictures, read_options)
    streams["batch"] = pipeline.training_batches(
        subset, read_options, seed, batch_size, shipped, augmentation.pictures,
        finish=augmentation.finish,
    )  # fmt: skip
    sample = _in_memory(streams["parse"], batch_size)
    streams[LIMIT] = limit_stream(*sample, augmentation.pictures, read_options, batch_size)
    return streams


def limit_stream(
    encoded: Any, position: Any, pictures: Pictures, read_options: ReadOptions, batch_size: int
) -> tf.data.Dataset:
    """`pictures` of JPEGs in memory, over and over: no shard, no shuffle, no parsing."""
    count = max(1, len(encoded) // batch_size)
    batches = [tf.reshape(t[: count * batch_size], [count, -1]) for t in (encoded, position)]
    stream = tf.data.Dataset.from_tensor_slices(tuple(batches)).repeat()
    return _mapped(stream, pictures, read_options)


def measure(
    streams: Mapping[str, tf.data.Dataset], batch_size: int, settle_batches: int, seconds: float
) -> dict[str, Speed]:
    """The speed of each endless dataset of batches.

    One endless iterator each: none is opened or closed while the clock runs, and the line that
    says on a terminal how far it is moves between two turns.

    Args:
        streams: By name.
        batch_size: Images of one element.
        settle_batches: Elements that a dataset may have made in advance; they are drawn,
            untimed, before each turn.
        seconds: How long each is measured, in all.

    Returns:
        Medians over `ROUNDS` turns.
    """
    iterators = {name: iter(stream) for name, stream in streams.items()}
    found: dict[str, list[Speed]] = {name: [] for name in streams}
    turns = (1 + ROUNDS) * len(streams)
    with progress_bar(desc="warming up", total=turns, unit=" turns") as bar:
        for iterator in iterators.values():
            _draw(iterator, WARM_UP_SEC, 1)
            bar.update()
        for _ in range(ROUNDS):
            for name, iterator in iterators.items():
                # The stage before still makes batches in advance, whose CPU time would be counted.
                wait_for_idle_cores()
                _draw(iterator, 0.0, settle_batches)
                found[name].append(_speed(iterator, batch_size, seconds / ROUNDS))
                images_per_sec = found[name][-1].images_per_sec
                bar.set_description_str(f"{name} {images_per_sec:,.0f} images/s", refresh=False)
                bar.update()
    return {
        name: Speed(
            statistics.median(speed.images_per_sec for speed in speeds),
            statistics.median(speed.cpu_usec for speed in speeds),
        )
        for name, speeds in found.items()
    }


def _speed(iterator: Iterator[Any], batch_size: int, seconds: float) -> Speed:
    cpu_sec = time.process_time()
    batches, passed_sec = _draw(iterator, seconds, 1)
    cpu_sec = time.process_time() - cpu_sec
    images = batches * batch_size
    return Speed(images / passed_sec, 1e6 * cpu_sec / images)


def _draw(iterator: Iterator[Any], seconds: float, least: int) -> tuple[int, float]:
    """Draws `least` batches, and more for so many seconds; returns their number and the time."""
    batches, started_sec = 0, time.perf_counter()
    while True:
        next(iterator)
        batches += 1
        passed_sec = time.perf_counter() - started_sec
        if passed_sec >= seconds and batches >= least:
            return batches, passed_sec


def _in_memory(parsed: tf.data.Dataset, batch_size: int) -> tuple[Any, Any]:
    """JPEGs, string [n], and their positions, int64 [n], as many as may be kept."""
    encoded, position, total_bytes = [], [], 0
    for batch in parsed:
        encoded.append(batch[0])
        position.append(batch[1])
        total_bytes += sum(map(len, batch[0].numpy()))
        if total_bytes >= LIMIT_BYTES or len(encoded) * batch_size >= LIMIT_RECORDS:
            break
    return tf.concat(encoded, 0), tf.concat(position, 0)


def _own_size(shipped: ModelInputs) -> tuple[int, int]:
    """The size at which nothing is resized, where all pictures share one."""
    own = shipped.image.size
    return shipped.size if own is None or shipped.image.varies else own


def _mapped(
    batches: tf.data.Dataset, function: Callable[..., Any], read_options: ReadOptions
) -> tf.data.Dataset:
    mapped = batches.map(
        function, num_parallel_calls=read_options.threads, deterministic=not read_options.fast_order
    )
    return _ahead(mapped, read_options)


def _ahead(batches: tf.data.Dataset, read_options: ReadOptions) -> tf.data.Dataset:
    """The settings of the whole reader, see `trainer.reader.pipeline`."""
    options = tf.data.Options()
    options.deterministic = not read_options.fast_order
    options.autotune.enabled = False
    options.threading.private_threadpool_size = read_options.threads
    return batches.prefetch(pipeline.PREFETCH_BATCHES).with_options(options)
