"""A worker's check of its own paths, rights and versions before any work is done."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import Any

import apache_beam as beam

from beam_pipeline.versions import differences, versions
from imageshards import storage
from imageshards.errors import UserError


@dataclasses.dataclass(frozen=True)
class Probe:
    """What a worker has to check.

    Attributes:
        output: Folder of the data set.
        question: File below it that holds the nonce.
        nonce: What the client wrote there.
        answer: File for what the worker found.
        input: The --input of the build; the fixed part of a glob.
        versions: The client's, by library.
    """

    output: str
    question: str
    nonce: str
    answer: str
    input: str
    versions: dict[str, str]


def inspect_worker(probe: Probe) -> dict[str, Any]:
    """What this process sees; written to `probe.answer` as well, if it can be.

    Raises:
        UserError: It does not see the output, or cannot write there.
    """
    host = socket.gethostname()
    if _text(probe.question) != probe.nonce:
        raise UserError(
            f"a worker on host {host} does not see --output {probe.output!r}, or sees another "
            "folder of that name; expected a folder that this machine and every worker share: "
            "give a mounted network folder or a gs:// or s3:// path."
        )
    found = {"host": host, "input": _sees_input(probe.input), "versions": versions()}
    try:
        storage.write(probe.answer, json.dumps(found))
    except OSError as e:
        raise UserError(
            f"a worker on host {host} cannot write to --output {probe.output!r} ({e.strerror or e})"
            "; expected the same rights there as here: fix them, or run the pool as this user."
        ) from e
    return found


def find_mismatch(probe: Probe, found: dict[str, Any]) -> str | None:
    """What a worker found that the build cannot work with, as one sentence; None if nothing."""
    host = found["host"]
    if not found["input"]:
        return (
            f"a worker on host {host} does not see --input {probe.input!r}; expected a path that "
            "this machine and every worker share: give a mounted network folder or a gs:// or "
            "s3:// path."
        )
    if differ := differences(probe.versions, found["versions"]):
        return (
            f"versions on worker host {host} differ from this machine's ({differ}); expected the "
            "same ones, as the bytes depend on them: install this release with its "
            "constraints.txt on both, and start the worker pool again."
        )
    return None


def _text(path: str) -> str:
    try:
        return storage.read(path).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _sees_input(path: str) -> bool:
    """Whether a file or a folder with something in it is there."""
    try:
        return storage.exists(path) or bool(storage.list_folder(path))
    except OSError:
        return False


def check_worker(probe: Probe) -> str:
    """Ends the job if this worker cannot do its work.

    Raises:
        UserError: It sees other paths or has other versions than the client.
    """
    if mismatch := find_mismatch(probe, inspect_worker(probe)):
        raise UserError(mismatch)
    return "checked"


class CheckWorker(beam.PTransform):
    """A pipeline's first step: one worker checks what it sees, and ends the job if that is wrong.

    Gives one element, for others to wait for.
    """

    def __init__(self, probe: Probe):
        super().__init__()
        self._probe = probe

    def expand(self, root: beam.Pipeline) -> beam.PCollection:
        return root | "Probe" >> beam.Create([self._probe]) | "Check" >> beam.Map(check_worker)
