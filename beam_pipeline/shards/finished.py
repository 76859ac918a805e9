"""Writes and checks the result beside a finished shard, by which a resumed job finds the shard."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import tempfile

import msgspec

from beam_pipeline.options import ShardOptions
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import ShardResult, WrittenFile
from imageshards import storage
from imageshards.errors import OutputError
from imageshards.typed import decode

# Errors of the output that would stop all shards, not only this one.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}


def unit_digest(unit: ShardUnit, options: ShardOptions) -> str:
    """Returns a hash of everything that determines a shard's bytes."""
    # Everything is sorted, so that a new order of fields does not change the hash.
    image = sorted(dataclasses.asdict(options.image).items())
    digest = hashlib.sha256(repr((image, sorted(options.versions))).encode())
    digest.update(repr(options.quarantine_bytes).encode())
    features = unit.features and sorted(unit.features.items())
    digest.update(repr((unit.name, sorted(unit.class_ids.items()), features)).encode())
    for ref in unit.refs:
        columns = sorted(ref.columns.items()) if ref.columns else None
        where = (ref.offset_bytes, ref.source_bytes) if ref.offset_bytes >= 0 else None
        text = repr((*ref[:7], columns, where, ref.in_pixels, ref.box_labels))
        digest.update(text.encode("utf-8", "backslashreplace"))  # file names may have surrogates
    return digest.hexdigest()


def finished_result(name: str, places: ShardPlaces, digest: str) -> ShardResult | None:
    """Returns the result of an earlier run that wrote this shard, if its files are still whole."""
    try:
        result = read_result(name, places)
    except (OSError, OutputError):
        return None
    # Some rejects may be temporary, as a new attempt may read those images.
    if result.digest != digest or any(r.may_be_temporary for r in result.rejects):
        return None
    files = {
        places.staged_path(name): result.file,
        places.index_path(name): result.index,
        places.rejects_path(name): result.rejects_file,
    }
    if not all(file is None or _is_whole(path, file) for path, file in files.items()):
        return None
    return msgspec.structs.replace(result, reused=True)


def read_result(name: str, places: ShardPlaces) -> ShardResult:
    """Reads the result beside a finished shard; raises `OutputError` for another file."""
    try:
        result = decode(storage.read(places.result_path(name)), ShardResult)
        if result.name != name:
            raise ValueError(f"it is the result of {result.name!r}")
        return result
    except ValueError as e:
        raise OutputError(
            f"{places.result_path(name)!r}, in the folder of an unfinished build, is not the "
            f"result of a shard ({e})",
            remedy="delete it and give the same command again",
        ) from e


def write_result(result: ShardResult, places: ShardPlaces) -> None:
    """Writes the result beside its shard, which makes the shard finished."""
    storage.write(places.result_path(result.name), msgspec.json.encode(result))


def is_unchanged(path: str, file: WrittenFile) -> bool:
    """Returns whether a file has the bytes that were written."""
    found = storage.stat(path)
    if found is None or found.size_bytes != file.num_bytes:
        return False
    # The bytes of a version need not be read again.
    is_same = bool(found.version) and file.version == found.version
    return is_same or storage.sha256_of(path)[1] == file.sha256


def _is_whole(path: str, file: WrittenFile) -> bool:
    """Does the same for a file of an earlier run; a file that cannot be read is written again."""
    # After a power cut, a file of this machine may have its size and time, but not its bytes.
    if storage.is_local(path):
        file = msgspec.structs.replace(file, version="")
    try:
        return is_unchanged(path, file)
    except OSError:
        return False


def output_error(path: str, e: OSError) -> Exception:
    """Returns a sentence for a known error of the output or of a store, else `e` itself."""
    is_local = storage.is_local(path)
    if e.errno not in _FATAL and is_local:
        return e
    remedy = "make room or fix its permissions"
    if not is_local and e.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"make room in {tempfile.gettempdir()}, where a shard waits (TMPDIR is another)"
    return OutputError(
        argument="output",
        received=f"{path!r}, which cannot be written ({e.strerror or e})",
        remedy=f"{remedy}, then give the same command again: finished shards are kept",
    )
