"""One set of functions for local files and for objects in stores.

    from imageshards import storage

    storage.write("s3://bucket/folder/name", b"...")
    storage.read("gs://bucket/name")
    storage.list_folder("/data/photos")

An error of one object is an `OSError`, such as `FileNotFoundError`, raised after retries. An error
of a bucket, its rights or its credentials is an `errors.StorageError`.
"""

from imageshards.storage.base import Backend as Backend
from imageshards.storage.base import Counts as Counts
from imageshards.storage.base import Stat as Stat
from imageshards.storage.base import count as count
from imageshards.storage.base import counts as counts
from imageshards.storage.base import read_up_to as read_up_to
from imageshards.storage.base import reset_counts as reset_counts
from imageshards.storage.base import unreported as unreported
from imageshards.storage.concurrency import in_thread as in_thread
from imageshards.storage.concurrency import map_concurrently as map_concurrently
from imageshards.storage.concurrency import map_in_processes as map_in_processes
from imageshards.storage.concurrency import run_concurrently as run_concurrently
from imageshards.storage.concurrency import shared_memory as shared_memory
from imageshards.storage.files import AtomicFile as AtomicFile
from imageshards.storage.files import absolute_place as absolute_place
from imageshards.storage.files import backend as backend
from imageshards.storage.files import check_bucket as check_bucket
from imageshards.storage.files import copy as copy
from imageshards.storage.files import copy_folder as copy_folder
from imageshards.storage.files import delete as delete
from imageshards.storage.files import delete_folder as delete_folder
from imageshards.storage.files import exists as exists
from imageshards.storage.files import extend as extend
from imageshards.storage.files import files_below as files_below
from imageshards.storage.files import files_from as files_from
from imageshards.storage.files import forget_clients as forget_clients
from imageshards.storage.files import glob as glob
from imageshards.storage.files import is_folder as is_folder
from imageshards.storage.files import is_local as is_local
from imageshards.storage.files import join as join
from imageshards.storage.files import link as link
from imageshards.storage.files import link_folder as link_folder
from imageshards.storage.files import list_folder as list_folder
from imageshards.storage.files import local_copy as local_copy
from imageshards.storage.files import move as move
from imageshards.storage.files import name_of as name_of
from imageshards.storage.files import open_read as open_read
from imageshards.storage.files import open_write as open_write
from imageshards.storage.files import parent_of as parent_of
from imageshards.storage.files import place as place
from imageshards.storage.files import read as read
from imageshards.storage.files import read_range as read_range
from imageshards.storage.files import settings as settings
from imageshards.storage.files import sha256_of as sha256_of
from imageshards.storage.files import stat as stat
from imageshards.storage.files import sync as sync
from imageshards.storage.files import using as using
from imageshards.storage.files import write as write
from imageshards.storage.files import write_new as write_new
from imageshards.storage.local import Entry as Entry
from imageshards.storage.local import delete_unfinished as delete_unfinished
from imageshards.storage.local import temporary_folder as temporary_folder
from imageshards.storage.local import walk as walk
from imageshards.storage.lock import OutputLock as OutputLock
from imageshards.storage.lock import join_job as join_job
from imageshards.storage.lock import output_lock as output_lock
