"""One set of functions for files of this machine and objects of stores.

    from imageshards import storage

    storage.write("s3://bucket/folder/name", b"...")
    storage.read("gs://bucket/name")
    storage.list_folder("/data/photos")

Errors of one object are `FileNotFoundError`, `PermissionError` or another `OSError`, after
retries; those of a bucket, its rights or its credentials: `errors.StorageError`.
"""

from imageshards.storage.atomic_file import AtomicFile
from imageshards.storage.base import (
    Backend,
    Counts,
    Stat,
    count,
    counts,
    reset_counts,
    unreported,
)
from imageshards.storage.concurrency import (
    map_concurrently,
    map_in_processes,
    run_concurrently,
    shared_memory,
)
from imageshards.storage.files import (
    backend,
    check_bucket,
    copy,
    copy_folder,
    delete,
    delete_folder,
    exists,
    extend,
    files_below,
    files_from,
    forget_clients,
    glob,
    is_folder,
    is_local,
    join,
    link,
    link_folder,
    list_folder,
    local_copy,
    move,
    name_of,
    open_read,
    open_write,
    parent_of,
    read,
    read_range,
    stat,
    sync,
    upload,
    write,
)
from imageshards.storage.local import hold_scratch, remove_abandoned
from imageshards.storage.lock import OutputLock, join_job, lock_holder, output_lock

__all__ = [
    "AtomicFile",
    "Backend",
    "Counts",
    "OutputLock",
    "Stat",
    "backend",
    "check_bucket",
    "copy",
    "copy_folder",
    "count",
    "counts",
    "delete",
    "delete_folder",
    "exists",
    "extend",
    "files_below",
    "files_from",
    "forget_clients",
    "glob",
    "hold_scratch",
    "is_folder",
    "is_local",
    "join",
    "link",
    "link_folder",
    "list_folder",
    "join_job",
    "local_copy",
    "lock_holder",
    "map_concurrently",
    "map_in_processes",
    "move",
    "name_of",
    "open_read",
    "open_write",
    "output_lock",
    "parent_of",
    "read",
    "read_range",
    "remove_abandoned",
    "reset_counts",
    "run_concurrently",
    "shared_memory",
    "stat",
    "sync",
    "unreported",
    "upload",
    "write",
]
