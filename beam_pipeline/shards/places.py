"""Computes the paths of shards and of the files beside them; needs no Beam."""

from __future__ import annotations

import dataclasses
import socket

import msgspec

from imageshards import storage
from imageshards.errors import LeaseLostError, OutputError
from imageshards.index import index_file
from imageshards.manifest import MANIFEST_NAME, QUARANTINE_NAME
from imageshards.typed import decode

# A job writes this file to the staging folder when it begins, and owns the output while the file
# has the job's id.
JOB_NAME = "job.json"


class JobNotes(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `JOB_NAME`: a random id of the job, and the digest of the build's options."""

    id: str = ""
    digest: str = ""
    pinned_classes: tuple[str, ...] = ()  # classes, by id, of the dataset that is replaced


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlaces:
    """Names and paths of shards.

    A shard is *staged* while its file is in the staging folder, *finished* when its result is there
    too, and *final* when the file is in the output. Finished shards stay staged until the commit.
    """

    output: str  # folder of final shards
    staging: str  # folder of results, indexes, rejects and staged shards
    job: str = ""  # id of the job in `JOB_NAME`; "" for a pipeline without that file
    # A file's name is first name, name of the shard and suffix.
    first_name: str = ""
    suffix: str = ".tfrecord"

    def check_job(self) -> None:
        """Raises `LeaseLostError` if another build of this output has begun since, or has ended.

        Raises `OutputError` if this process does not see the folder that the client has prepared.
        """
        if not self.job:
            return
        path = storage.join(self.staging, JOB_NAME)
        try:
            found = decode(storage.read(path), JobNotes).id
        except ValueError:
            found = ""
        except FileNotFoundError:
            # A build that has ended leaves a dataset in place of this file.
            if not storage.exists(storage.join(self.output, MANIFEST_NAME)):
                raise OutputError(
                    argument="output",
                    received=f"{self.output!r}, where {socket.gethostname()} finds no {path}",
                    expected="this file of the client, in a folder that all workers see and nobody "
                    "deletes",
                    remedy="mount one at the same path everywhere, or use gs:// or s3://",
                ) from None
            found = ""
        if found != self.job:
            raise LeaseLostError(
                argument="output",
                received=f"{self.output!r}, which was taken over by another build, so this one "
                "stops and publishes nothing",
                remedy="cancel this job if its runner still shows it",
            )

    def file_of(self, name: str) -> str:
        return f"{self.first_name}{name}{self.suffix}"

    def name_of(self, path: str) -> str:
        file = storage.name_of(path)
        return file[len(self.first_name) : len(file) - len(self.suffix)]

    def staged_path(self, name: str) -> str:
        return storage.join(self.staging, self.file_of(name))

    def final_path(self, name: str) -> str:
        return storage.join(self.output, self.file_of(name))

    def result_path(self, name: str) -> str:
        return storage.join(self.staging, name + ".json")

    def index_path(self, name: str) -> str:
        """Returns the path of the index of the shard's records, as they were written."""
        return storage.join(self.staging, index_file(self.file_of(name)))

    def rejects_path(self, name: str) -> str:
        """Returns the path of the shard's rejected images until the commit; it may not exist."""
        return storage.join(self.staging, name + ".rejects")

    def quarantine_path(self, name: str) -> str:
        return storage.join(self.output, QUARANTINE_NAME, f"{self.first_name}{name}.tfrecord")
