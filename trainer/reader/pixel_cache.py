"""Pictures decoded once: the cache `pixels`, fixed rows of a file that is mapped into memory.

A folder of it holds three files:

- `pixels`: a row, uint8 [height, width, channels], for each record of a split, then a black one;
- `records`: the records without their pictures, one after the other; in place of a damaged record
  its place and the reason, as JSON;
- `ends`: int64 for each record, where it ends in `records`; below 0 for a damaged record.

Until all are whole its name ends in `.part`. Records are decoded in their order, and what `ends`
tells is done, whatever happens to the process or the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.errors import Arg, UserError
from imageshards.example import without_feature
from imageshards.progress import ProgressLine, rate_line
from imageshards.storage.concurrency import map_concurrently
from imageshards.text import counted
from imageshards.tfrecord import RecordError
from trainer.augment.decode import Rows, batch_pictures
from trainer.cluster.connection import note_work
from trainer.dataset.spec import ReadOptions, Subset
from trainer.reader.read_ahead import READ_AHEAD_THREADS, Piece, Source
from trainer.reader.unreadable import explain

# Pictures of a piece: it may hold many small ones, and their pixels much more than it.
_DECODED_AT_ONCE = 64
# After so many pieces what is done is safe.
_SAFE_PIECES = 64
_WAIT_SEC = 0.5


class PixelCache:
    """A split that was decoded once; a `trainer.reader.records.Source` of all but the pictures.

    Args:
        folder: Of the cache.
        subset: Whose split it is.
    """

    def __init__(self, folder: str, subset: Subset) -> None:
        self._folder, self._pieces = folder, subset.pieces
        self._ends = np.fromfile(os.path.join(folder, "ends"), np.int64)
        self._records = open(os.path.join(folder, "records"), "rb")
        self._black = len(self._ends)
        # Writable, as DLPack gives no other; what one would write to it would stay in memory.
        shape = (self._black + 1, *_row_shape(subset))
        mapped = np.memmap(os.path.join(folder, "pixels"), np.uint8, "c", shape=shape)
        with tf.device("CPU"):
            # Without a copy: the page cache decides what of the file is in memory.
            self._pixels = tf.experimental.dlpack.from_dlpack(np.asarray(mapped).__dlpack__())

    def read(self, piece: int) -> Piece:
        """The records of a piece without their pictures, or in their place what is wrong."""
        first, count = int(self._pieces.first[piece]), int(self._pieces.count[piece])
        ends = np.abs(self._ends[max(0, first - 1) : first + count]).tolist()
        ends = ends if first else [0, *ends]
        start = ends[0]
        data = os.pread(self._records.fileno(), ends[-1] - start, start)
        found: list[bytes | RecordError] = [
            data[a - start : b - start] for a, b in zip(ends, ends[1:], strict=False)
        ]
        for i in np.flatnonzero(self._ends[first : first + count] < 0).tolist():
            path, number, offset, reason = json.loads(found[i])  # type: ignore[arg-type]
            when = f"when {self._folder} was filled: if it is whole now, remove that folder"
            found[i] = RecordError(path, number, offset, f"{reason} ({when})")
        return found

    def rows(self, records: tf.Tensor, present: tf.Tensor) -> Rows:
        """The pictures of records, int64 [b]; black where `present`, bool [b], is not set."""
        return Rows(self._pixels, tf.where(present, records, self._black))


def decode_once(
    subset: Subset, read_options: ReadOptions, reader: Source, hosts: int = 1
) -> PixelCache:
    """The whole split decoded, in a folder below `read_options.cache_folder`.

    What is there is used again, by all processes that share the folder: one of them decodes, the
    others wait for it. A damaged record is one in the cache, too.

    Args:
        subset: Of the split; its pictures have one size.
        read_options: How many threads decode, and where to.
        reader: Of the shards.
        hosts: That train together.

    Raises:
        UserError: The folder is not named, not writable, or too full; or a picture cannot be
            decoded.
    """
    if read_options.cache_folder is None:
        raise UserError(
            argument="cache",
            received="'pixels', but no folder to keep the pictures in",
            remedy="name a folder by " + Arg("cache_folder"),
        )
    split = urllib.parse.quote(subset.split.name, safe="")
    name = f"pixels-{split}-{'x'.join(map(str, _row_shape(subset)))}"
    of_set = subset.dataset.fingerprint[:16] or "shards"
    folder = os.path.join(read_options.cache_folder, of_set, name)
    try:
        if not os.path.isdir(folder):
            os.makedirs(f"{folder}.part", exist_ok=True)
            with _held(folder):
                if not os.path.isdir(folder):
                    _fill(f"{folder}.part", subset, read_options.threads, reader, hosts)
                    os.rename(f"{folder}.part", folder)
        return PixelCache(folder, subset)
    except OSError as e:
        raise UserError(
            argument="cache",
            received=f"'pixels', but {folder!r} cannot be filled ({e})",
            expected="a writable folder with enough room",
            remedy="name another folder by "
            + Arg("cache_folder")
            + ", or use "
            + Arg("cache", "none"),
        ) from e


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """Waits until no other process fills the folder, and keeps others out."""
    with open(f"{folder}.lock", "ab") as lock:
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    print(f"waiting: another process fills {folder}", file=sys.stderr)
                waiting = True
                note_work()
                time.sleep(_WAIT_SEC)
        yield


def _fill(folder: str, subset: Subset, threads: int, reader: Source, hosts: int) -> None:
    """Decodes what is missing in `folder`, several pieces at a time.

    Raises:
        OSError: There is no room, or the folder cannot be written.
    """
    count, first = subset.split.num_records, subset.pieces.first
    num_bytes = (count + 1) * math.prod(_row_shape(subset))
    with contextlib.ExitStack() as stack:
        pixels, records, ends = (
            stack.enter_context(open(os.path.join(folder, name), mode))
            for name, mode in (("pixels", "ab"), ("records", "ab"), ("ends", "ab+"))
        )
        needed = num_bytes - os.fstat(pixels.fileno()).st_blocks * 512
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(f"{needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free")
        each = ", on each host that has a --cache_folder of its own" * (hosts > 1)
        what = f"{counted(count, 'picture')} of {subset.split.name}"
        print(f"decoding {what} ({num_bytes / 1e9:.2f} GB{each}) to {folder}", file=sys.stderr)
        ends.seek(0)
        told = ends.read()
        known = np.frombuffer(told[: len(told) // 8 * 8], np.int64)
        end, done = (abs(int(known[-1])) if len(known) else 0), len(known)
        pixels.truncate(num_bytes)
        records.truncate(end)
        ends.truncate(8 * done)
        waiting: list[int] = []

        def save() -> None:
            """What was written is there even after a loss of power, and only then told."""
            records.flush()
            os.fsync(pixels.fileno())
            os.fsync(records.fileno())
            ends.write(np.array(waiting, np.int64).tobytes())
            ends.flush()
            os.fsync(ends.fileno())
            waiting.clear()

        begun, before = time.monotonic(), done
        todo = range(int(np.searchsorted(first, done)), len(first))
        decode = _piece_decoder(subset, os.path.join(folder, "pixels"))
        pieces = zip(todo, map_concurrently(reader.read, todo, READ_AHEAD_THREADS), strict=True)

        def line() -> str:
            rate = rate_line(done, count, "pictures", time.monotonic() - begun, before)
            return f"decoded {rate}"

        with ProgressLine(line):
            for piece, rests in zip(todo, map_concurrently(decode, pieces, threads), strict=True):
                for rest in rests:
                    if isinstance(rest, RecordError):
                        end += records.write(json.dumps(rest.args[:4]).encode())
                        waiting.append(-end)
                    else:
                        end += records.write(rest)
                        waiting.append(end)
                done += len(rests)
                if piece % _SAFE_PIECES == 0:
                    save()
            save()


def _piece_decoder(subset: Subset, path: str) -> Callable[[tuple[int, Piece]], Piece]:
    """A function that writes the pictures of a piece into `path`, and returns all else of it."""
    dataset, pieces = subset.dataset, subset.pieces
    shape = _row_shape(subset)
    pictures = batch_pictures(dataset.image, shape[:2])
    black = bytes(tf.io.encode_jpeg(tf.zeros(shape, tf.uint8)).numpy())

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def decoded(encoded: tf.Tensor) -> tf.Tensor:
        return pictures(encoded, None, 1)

    def split(payloads: Sequence[bytes]) -> tuple[Any, list[bytes]]:
        parts = [without_feature(p, dataset.image_feature) if p else (black, p) for p in payloads]
        with tf.device("CPU"):
            pixels = decoded(tf.constant([encoded for encoded, _ in parts], tf.string))
        return pixels.numpy(), [rest for _, rest in parts]

    def decode(numbered: tuple[int, Piece]) -> Piece:
        note_work()
        piece, records = numbered
        first = int(pieces.first[piece])
        found: list[bytes | RecordError] = []
        with open(path, "r+b", buffering=0) as file:
            file.seek(first * math.prod(shape))
            for at in range(0, len(records), _DECODED_AT_ONCE):
                chunk = records[at : at + _DECODED_AT_ONCE]
                try:
                    pixels, rests = split([b"" if isinstance(r, RecordError) else r for r in chunk])
                # TensorFlow quotes a record, and stumbles over its bytes.
                except (ValueError, tf.errors.InvalidArgumentError) as e:
                    suspects = first + at + np.arange(len(chunk))
                    raise explain(e, subset, suspects) from e
                file.write(pixels)
                found += [
                    one if isinstance(one, RecordError) else rest
                    for one, rest in zip(chunk, rests, strict=True)
                ]
        return found

    return decode


def _row_shape(subset: Subset) -> tuple[int, int, int]:
    image = subset.dataset.image
    if image.size is None or image.varies:
        raise ValueError("pictures of one size are needed")
    return (*image.size, image.channels)
