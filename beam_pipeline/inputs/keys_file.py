"""Files of keys: one on each line, or the `key` column of Parquet files."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json

from imageshards import storage
from imageshards.errors import UserError
from imageshards.index import has_index, read_index
from imageshards.manifest import INDEX_NAME, MANIFEST_NAME, load_manifest

EXCLUDED_NAME = "excluded.keys"


@dataclasses.dataclass(frozen=True)
class KeysFile:
    """Keys that a build left for all its workers.

    Attributes:
        given: What named them.
        path: The file, which every worker sees.
        digest: Of its bytes.
        count: How many there are.
    """

    given: str
    path: str
    digest: str
    count: int

    def ranks(self) -> dict[str, int]:
        """Key → its rank among all; read once by each process."""
        return _ranks(self.path, self.digest)


@functools.lru_cache(maxsize=1)
def _ranks(path: str, digest: str) -> dict[str, int]:
    return {key: rank for rank, key in enumerate(json.loads(storage.read(path)))}


def share_keys(given: str, folder: str) -> KeysFile:
    """Writes the keys of a file where every worker sees them.

    Args:
        given: As for `read_keys`.
        folder: Of the unfinished data set.

    Raises:
        UserError: As `read_keys`.
    """
    keys = read_keys(given, "--exclude")
    data = json.dumps(keys).encode()
    path = storage.join(folder, EXCLUDED_NAME)
    storage.write(path, data)
    return KeysFile(given, path, hashlib.sha256(data).hexdigest(), len(keys))


def read_keys(path: str, flag: str) -> list[str]:
    """The keys that a file names, sorted, each once.

    Args:
        path: A text file with a key on each line; a `.parquet` file with a column `key`; a folder
            of such files, as the `index/` of a data set; or a data set that has one.
        flag: What named it, for messages.

    Raises:
        UserError: It cannot be read, has no such column, or names no key.
    """
    try:
        if storage.exists(storage.join(path, MANIFEST_NAME)):
            keys = _of_data_set(path, flag)
        elif path.lower().endswith((".parquet", ".pq")):
            keys = _of_parquet(path, flag)
        elif storage.is_folder(path):
            files = [e.path for e in storage.list_folder(path) if e.name.endswith(".parquet")]
            keys = [key for file in files for key in _of_parquet(file, flag)]
        else:
            text = storage.read(path).decode("utf-8-sig")
            keys = [line for line in text.splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        raise UserError(
            f"{flag} {path!r} cannot be read ({reason}); expected a text file with a key on each "
            "line, a .parquet file with a column 'key', or the index/ of a data set."
        ) from e
    if not keys:
        raise UserError(
            f"{flag} {path!r} names no key; expected at least one: a key on each line, or a column "
            "'key' of .parquet files."
        )
    return sorted(set(keys))


def _of_data_set(path: str, flag: str) -> list[str]:
    manifest = load_manifest(path, flag)
    if not has_index(manifest):
        raise UserError(
            f"{flag} {path!r} is a data set without {INDEX_NAME}/ (an older version built it); "
            "expected one with it: build it again with --overwrite."
        )
    found: list[str] = read_index(path, manifest, columns=["key"], argument=flag)["key"].to_pylist()
    return found


def _of_parquet(path: str, flag: str) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with storage.open_read(path) as file:
            table = pq.ParquetFile(file).read(["key"])
            found: list[str | None] = table["key"].cast(pa.string()).to_pylist()
    except (pa.ArrowException, KeyError, ValueError) as e:
        raise UserError(
            f"{flag} {path!r} has no column 'key' of texts ({str(e).splitlines()[0]}); expected a "
            "Parquet file as index/ has them."
        ) from e
    return [key for key in found if key]
