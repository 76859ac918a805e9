"""A small job before the build: a worker checks that it sees the same paths, and its versions."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PortableOptions

from beam_pipeline.inputs import layout
from beam_pipeline.shards.versions import differences, versions
from imageshards import storage
from imageshards.errors import UserError, last_line

if TYPE_CHECKING:
    from beam_pipeline.runners.runner import Build

# From the submission of the small job to its end; an image may have to be downloaded for DOCKER.
ANSWER_TIMEOUT_SEC = {"DOCKER": 900.0, "": 120.0}
_SEEN_TIMEOUT_SEC = 15.0


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
    inputs: tuple[str, ...]
    versions: dict[str, str]

    def write_question(self) -> None:
        """Writes the nonce where the worker looks for it."""
        storage.write(self.question, self.nonce)


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
    unseen = [path for path in probe.inputs if not _sees_input(path)]
    found = {"host": host, "unseen_inputs": unseen, "versions": versions()}
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
    for path in found["unseen_inputs"]:
        return (
            f"a worker on host {host} does not see --input {path!r}; expected a path that "
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


def make_probe(build: Build) -> Probe:
    """What a worker has to check for a build."""
    nonce = uuid.uuid4().hex
    return Probe(
        build.output,
        storage.join(build.staging, f"preflight-{nonce}.question"),
        nonce,
        storage.join(build.staging, f"preflight-{nonce}.answer"),
        tuple(layout.glob_root(p) if layout.is_glob(p) else p for p in build.inputs),
        versions(),
    )


def check_by_worker(
    build: Build, pipeline: beam.Pipeline, run: Callable[[beam.Pipeline, float], None]
) -> None:
    """Runs a small job whose worker looks at the build's paths, rights and versions.

    Args:
        build: What the worker will have to read and write.
        pipeline: An empty one.
        run: Runs it for so many seconds at most, or raises TimeoutError.

    Raises:
        UserError: The worker cannot do its part, or there is none.
    """
    kind = (pipeline.options.view_as(PortableOptions).environment_type or "").upper()
    timeout_sec = ANSWER_TIMEOUT_SEC.get(kind, ANSWER_TIMEOUT_SEC[""])
    probe = make_probe(build)
    pipeline | "CheckWorker" >> CheckWorker(probe)
    try:
        probe.write_question()
        run(pipeline, timeout_sec)
        found = read_answer(probe)
    except RuntimeError as e:
        raise _explain(e) from e
    except TimeoutError:
        raise UserError(
            f"no worker answered within {timeout_sec:.0f} s (--environment_type {kind or 'unset'}"
            "); expected one to begin: see the logs of the job service and of the worker pool; "
            "the job was cancelled."
        ) from None
    finally:
        storage.delete([probe.question, probe.answer])
    if mismatch := find_mismatch(probe, found):
        raise UserError(mismatch)


def read_answer(probe: Probe) -> dict[str, Any]:
    """What the worker found; a network folder shows another host's file a while later."""
    deadline = time.monotonic() + _SEEN_TIMEOUT_SEC
    while True:
        try:
            found: dict[str, Any] = json.loads(storage.read(probe.answer))
            return found
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                raise UserError(
                    f"a worker wrote to --output {probe.output!r}, and nothing of it arrived here; "
                    "expected a folder that this machine and every worker share: give a mounted "
                    "network folder or a gs:// or s3:// path."
                ) from None
            time.sleep(0.1)


def _explain(e: RuntimeError) -> UserError:
    """Why the small job failed."""
    text = str(e)
    if "No module named 'beam_pipeline" in text or "worker_check" in text and "Attr" in text:
        return UserError(
            "the workers' Python has no imageshards of this release; expected the same one as "
            "here: install it with its constraints.txt into the pool's environment and start the "
            "pool from there (make worker-pool)."
        )
    return UserError(
        f"a small job that only checks paths and versions failed ({last_line(text)}); expected a "
        "worker to answer: see the logs of the job service and of the worker pool."
    )
