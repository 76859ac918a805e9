"""Caches decoded pictures (`--cache pixels`) as fixed-size rows of a memory-mapped file.

The folder of a cache holds three files:

- `pixels`: a row, uint8 [height, width, channels], for each record of a split, then a black row;
- `records`: the records without their pictures; for a damaged record its place and the reason, as
  JSON;
- `ends`: int64 for each record, the offset of its end in `records`; negative for a damaged record.

The name of the folder ends in `.part` until all files are whole. Records are decoded in order, and
every record that `ends` lists survives a crash of the process or the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import mmap
import os
import resource
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
from trainer.dataset.spec import ReadOptions
from trainer.dataset.subset import Subset
from trainer.reader.pieces import Piece, PieceReader
from trainer.reader.plan import Array
from trainer.reader.read_ahead import READ_AHEAD_THREADS
from trainer.reader.unreadable import explain

# Decoding a whole piece may take too much memory: the pixels of many small files are much larger.
_DECODED_AT_ONCE = 64
# Progress is written to disk after this many pieces.
_SAFE_PIECES = 64
_WAIT_SEC = 0.5
# The names of many splits, read as one, would be longer than the name of a file may be.
_MAX_NAME = 150


class PixelCache:
    """The decoded pictures of a split in `folder`, with the remaining features of its records."""

    def __init__(self, folder: str, subset: Subset) -> None:
        self._folder = folder
        # A record begins where the record before it ends.
        ends = np.fromfile(os.path.join(folder, "ends"), np.int64)
        self._ends = np.concatenate([np.zeros(1, np.int64), ends])
        with open(os.path.join(folder, "records"), "rb") as records:
            self._records = mmap.mmap(records.fileno(), 0, access=mmap.ACCESS_READ)
        self._black = len(ends)
        mapped = _Mapped(os.path.join(folder, "pixels"), self._black + 1, *_row_shape(subset))
        with tf.device("CPU"):
            # The tensor shares the mapping, so the page cache decides which rows are in memory.
            self._pixels = tf.experimental.dlpack.from_dlpack(np.asarray(mapped).__dlpack__())

    def ask(self, piece: int, count: int) -> None:
        """Prepares nothing, as the cache reads without delay."""

    def read(self, numbers: Array) -> list[bytes | RecordError]:
        """Returns the records without their pictures, as a `Source` does."""
        begins, ends = np.abs(self._ends[numbers]).tolist(), self._ends[numbers + 1].tolist()
        return [
            self._records[begin:end] if end > 0 else self._damage(self._records[begin:-end])
            for begin, end in zip(begins, ends, strict=True)
        ]

    def _damage(self, noted: bytes) -> RecordError:
        path, number, offset, reason = json.loads(noted)
        when = f"when {self._folder} was filled: if it is whole now, remove that folder"
        return RecordError(path, number, offset, f"{reason} ({when})")

    def rows(self, records: tf.Tensor, present: tf.Tensor) -> Rows:
        """Returns pictures of records, int64 [b]; black ones unless `present`, bool [b]."""
        return Rows(self._pixels, tf.where(present, records, self._black))


class _Mapped:
    """A mapped file, for `np.asarray`; arrays and tensors of it keep the mapping.

    The mapping is shared and read-only. A private, writable one counts as memory, so the system
    refuses a file that is larger than memory and swap space.
    """

    def __init__(self, path: str, *shape: int) -> None:
        num_bytes = math.prod(shape)
        with open(path, "rb") as file:
            try:
                self._mapping = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)
            # A ValueError: the file is shorter.
            except (OSError, ValueError) as e:
                limit, _ = resource.getrlimit(resource.RLIMIT_AS)
                allowed = "unlimited" if limit < 0 else f"limited to {limit / 1e9:.2f} GB"
                raise UserError(
                    argument="cache",
                    received=f"'pixels', but {path!r} of {num_bytes / 1e9:.2f} GB cannot be mapped "
                    f"({e}; the address space of this process is {allowed})",
                    expected="more address space (ulimit -v unlimited), another "
                    + Arg("cache_folder")
                    + (", or " + Arg("cache", "none")),
                ) from e
        address = np.frombuffer(self._mapping, np.uint8).ctypes.data
        # DLPack refuses read-only arrays, so False calls this one writable. Nothing writes to it.
        self.__array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": "|u1", "version": 3,
        }  # fmt: skip


def decode_once(
    subset: Subset, read_options: ReadOptions, reader: PieceReader, hosts: int = 1
) -> PixelCache:
    """Decodes the whole split into a folder below `read_options.cache_folder`, unless it is there.

    All pictures have one size. One of the processes that share the folder decodes, while all
    further processes wait. Damaged records stay damaged in the cache.

    Args:
        subset: A subset of the split.
        read_options: The number of threads that decode, and the folder for caches.
        reader: Reads the shards.
        hosts: Number of hosts that train together.
    """
    if read_options.cache_folder is None:
        raise UserError(
            argument="cache",
            received="'pixels', but no folder to keep the pictures in",
            remedy="name a folder by " + Arg("cache_folder"),
        )
    split = urllib.parse.quote(subset.split.name, safe="")
    if len(split) > _MAX_NAME:
        split = hashlib.sha256(split.encode()).hexdigest()[:16]
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
            received=f"'pixels', but {folder!r} cannot be used ({e})",
            expected="a writable folder with enough room",
            remedy="name another " + Arg("cache_folder") + ", or use " + Arg("cache", "none"),
        ) from e


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """Holds a lock that lets one process fill the folder."""
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
                time.sleep(_WAIT_SEC)
        yield


class _Part:
    """The files of a cache that is filled; each record below `done` survives a loss of power.

    Raises OSError if the disk is too full.
    """

    def __init__(self, folder: str, num_bytes: int, stack: contextlib.ExitStack) -> None:
        self._pixels, self._records, self._ends = (
            stack.enter_context(open(os.path.join(folder, name), mode))
            for name, mode in (("pixels", "ab"), ("records", "ab"), ("ends", "ab+"))
        )
        # A file that was extended has holes, so only its blocks (of 512 bytes) take space.
        needed = num_bytes - os.fstat(self._pixels.fileno()).st_blocks * 512
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(f"{needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free")
        self._ends.seek(0)
        held = self._ends.read()
        # A killed process may have left half a number, and more records than `ends` lists.
        known = np.frombuffer(held[: len(held) // 8 * 8], np.int64)
        self._end, self.done = (abs(int(known[-1])) if len(known) else 0), len(known)
        self._pixels.truncate(num_bytes)  # extends the file at first; the last row stays black
        self._records.truncate(self._end)
        self._ends.truncate(8 * self.done)
        # Decoding may take hours, so a mapping that the system refuses must fail before. The
        # mapping lasts, so that decoding leaves as much of a limited address space.
        self._reserved = _Mapped(self._pixels.name, num_bytes)
        self._waiting: list[int] = []

    def add(self, rests: Piece) -> None:
        for rest in rests:
            if isinstance(rest, RecordError):
                self._end += self._records.write(json.dumps(rest.args[:4]).encode())
                self._waiting.append(-self._end)  # the sign marks a damaged record
            else:
                self._end += self._records.write(rest)
                self._waiting.append(self._end)
        self.done += len(rests)

    def save(self) -> None:
        # `ends` is written last, so it lists only records that survive a loss of power.
        self._records.flush()
        os.fsync(self._pixels.fileno())
        os.fsync(self._records.fileno())
        self._ends.write(np.array(self._waiting, np.int64).tobytes())
        self._ends.flush()
        os.fsync(self._ends.fileno())
        self._waiting.clear()


def _fill(folder: str, subset: Subset, threads: int, reader: PieceReader, hosts: int) -> None:
    """Decodes the pictures that `folder` lacks; raises OSError if the disk is too full."""
    count, first = subset.split.num_records, subset.pieces.first
    num_bytes = (count + 1) * math.prod(_row_shape(subset))
    with contextlib.ExitStack() as stack:
        part = _Part(folder, num_bytes, stack)
        each = ", on each host that has a --cache_folder of its own" * (hosts > 1)
        what = f"{counted(count, 'picture')} of {subset.split.name}"
        print(f"decoding {what} ({num_bytes / 1e9:.2f} GB{each}) to {folder}", file=sys.stderr)
        begun, before = time.monotonic(), part.done
        todo = range(int(np.searchsorted(first, before)), len(first))
        decode = _piece_decoder(subset, os.path.join(folder, "pixels"))
        pieces = zip(todo, map_concurrently(reader.read, todo, READ_AHEAD_THREADS), strict=True)

        def line() -> str:
            seconds = time.monotonic() - begun
            return "decoded " + rate_line(part.done, count, "pictures", seconds, before)

        with ProgressLine(line):
            for piece, rests in zip(todo, map_concurrently(decode, pieces, threads), strict=True):
                part.add(rests)
                if piece % _SAFE_PIECES == 0:
                    part.save()
            part.save()


def _piece_decoder(subset: Subset, path: str) -> Callable[[tuple[int, Piece]], Piece]:
    """Returns a function that writes the pictures of a piece into `path`, and returns the rest."""
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
        piece, records = numbered
        first = int(pieces.first[piece])
        found: list[bytes | RecordError] = []
        with open(path, "r+b", buffering=0) as file:
            file.seek(first * math.prod(shape))
            for at in range(0, len(records), _DECODED_AT_ONCE):
                chunk = records[at : at + _DECODED_AT_ONCE]
                try:
                    pixels, rests = split(
                        [b"" if isinstance(r, RecordError) else bytes(r) for r in chunk]
                    )
                # A ValueError: TensorFlow quotes a record, whose bytes Python cannot decode.
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
