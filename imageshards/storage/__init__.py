"""Files and objects, on this machine and in stores, by one set of functions.

    from imageshards import storage

    storage.write("s3://bucket/folder/name", b"...")
    storage.read("gs://bucket/name")
    storage.list_folder("/data/photos")

Errors of one object are `FileNotFoundError`, `PermissionError` or another `OSError`, after
retries; those of a bucket, its rights or its credentials: `errors.StorageError`.
"""

from imageshards.storage.atomic_file import AtomicFile
from imageshards.storage.base import Counts, Entry, Stat
from imageshards.storage.concurrency import map_concurrently, run_concurrently
from imageshards.storage.files import (
    age_sec,
    backend,
    begins_anywhere,
    check_bucket,
    copy,
    copy_folder,
    counts,
    create,
    delete,
    delete_folder,
    download,
    drop_unfinished,
    exists,
    files_below,
    files_from,
    first_from,
    forget_clients,
    is_local,
    join,
    list_folder,
    move,
    name_of,
    open_read,
    parent_of,
    part_bytes,
    read,
    replace_if,
    reset_counts,
    stat,
    unreported,
    upload,
    upload_stream,
    write,
)
from imageshards.storage.lock import OutputLock, output_lock

__all__ = [
    "AtomicFile",
    "Counts",
    "Entry",
    "OutputLock",
    "Stat",
    "age_sec",
    "backend",
    "begins_anywhere",
    "check_bucket",
    "copy",
    "copy_folder",
    "counts",
    "create",
    "delete",
    "delete_folder",
    "download",
    "drop_unfinished",
    "exists",
    "files_below",
    "files_from",
    "first_from",
    "forget_clients",
    "is_local",
    "join",
    "list_folder",
    "map_concurrently",
    "move",
    "name_of",
    "open_read",
    "output_lock",
    "parent_of",
    "part_bytes",
    "read",
    "replace_if",
    "reset_counts",
    "run_concurrently",
    "stat",
    "unreported",
    "upload",
    "upload_stream",
    "write",
]
