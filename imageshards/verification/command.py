"""`imageshards verify DIR`: reads a dataset again and lists all its problems."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.errors import UserError, names_arguments
from imageshards.text import counted

if TYPE_CHECKING:
    from imageshards.verification.shard import Problem

# In the order of the table.
CHECKS = {
    "manifest": "agrees with itself and with its digest",
    "files": "all are there with the right size, and no other shard",
    "checksums": "SHA-256 of every file but those in report/ and duplicates/",
    "records": "as many as the manifest says, by shard and class",
    "balance": "shards differ by at most one record, also of each class",
    "keys": "no key twice, over all splits",
    "index": "index/ has the rows of every shard",
    "accounting": "listed = records + rejects, and the quarantine holds these",
}


@dataclasses.dataclass(repr=False)
class Verdict:
    """What was found; its text is what the command prints.

    Attributes:
        problems: In the order of `CHECKS`, then of the shards.
        notes: Sentences that are no problems.
        num_shards, num_records, num_bytes: What was read.
    """

    directory: str
    problems: list[Problem]
    notes: list[str]
    num_shards: int
    num_records: int
    num_bytes: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the dataset is what its manifest says."""
        return not self.problems

    @property
    def found(self) -> Counter[str]:
        """Number of problems of every check that has any."""
        return Counter(problem.check for problem in self.problems)

    def __repr__(self) -> str:
        """The table of checks, the problems and the notes, for a terminal."""
        from imageshards.progress import text_table

        # What is missing or damaged hides what else may be wrong with it.
        well = "ok where read" if {"files", "index"} & self.found.keys() else "ok"
        rows = [
            (check, f"{self.found[check]} wrong" if self.found[check] else well, what)
            for check, what in CHECKS.items()
        ]
        lines = [text_table(("check", "result", "what was looked at"), rows, texts=(0, 1, 2)), ""]
        lines.extend(problem.message for problem in self.problems)
        lines.extend(f"Note: {note}" for note in self.notes)
        outcome = "All is well" if self.ok else counted(len(self.problems), "problem")
        lines.append(
            f"{outcome}: {counted(self.num_records, 'record')}, {self.num_bytes / 1e6:.1f} MB in "
            f"{counted(self.num_shards, 'shard')} read, {self.seconds:.1f} s."
        )
        if not self.ok:
            lines.append(
                "To fix it, copy the files anew, or build the dataset again with --overwrite."
            )
        return "\n".join(lines)


@names_arguments(DIR="directory")
def verify(
    directory: str | os.PathLike[str],
    workers: int | None = None,
    show_progress: bool = False,
    records_root: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Reads a dataset again, whole.

    Args:
        directory: What a build wrote, here or in a store.
        workers: Processes; None for one per core.
        show_progress: Whether a terminal shows how far it is.
        records_root: Where the shards of an adopted dataset may lie besides its own folder.

    Raises:
        UserError: There is no manifest that could be read, it is not of the form that builds
            write, its store cannot be used, or a process was killed.
    """
    from imageshards import storage
    from imageshards.manifest import STAGING_NAME, load_manifest
    from imageshards.progress import with_progress
    from imageshards.verification.dataset import dataset_problems
    from imageshards.verification.shard import check_shard

    started = time.monotonic()
    directory = storage.absolute_place("DIR", directory)
    storage.check_bucket(directory, "DIR")
    manifest = load_manifest(
        directory, "DIR", complete=True, adopted=True, records_root=records_root
    )
    shards = [shard for _, shard in manifest.shards()]
    check = functools.partial(check_shard, directory)
    checked = storage.map_in_processes(check, shards, workers)
    if show_progress:
        checked = with_progress(checked, len(shards), "shards", "verifying")
    results = list(checked)
    found = [*dataset_problems(directory, manifest)]
    found += [problem for result in results for problem in result.problems]
    read = [result for result in results if result.sha256]
    notes = []
    if storage.is_folder(storage.join(directory, STAGING_NAME)):
        notes.append(
            f"{STAGING_NAME}/ is left over from an unfinished build; it may be deleted unless a "
            "build is running."
        )
    order = list(CHECKS)
    return Verdict(
        directory,
        sorted(found, key=lambda problem: order.index(problem.check)),
        notes,
        len(read),
        sum(result.num_records for result in read),
        sum(result.num_bytes for result in read),
        time.monotonic() - started,
    )


def json_of(verdict: Verdict) -> str:
    """All of a verdict for programs."""
    document = {
        **{f.name: getattr(verdict, f.name) for f in dataclasses.fields(verdict)},
        "ok": verdict.ok,
        "found": verdict.found,
        "problems": [problem._asdict() for problem in verdict.problems],
    }
    return json.dumps(document, indent=1)


def make_parser() -> Parser:
    """The parser of `imageshards verify`."""
    parser = command_line.dataset_parser(
        "verify",
        "Reads a dataset again and names all that is wrong with it, by file, record and byte "
        "offset.",
        "Exit code: 0 all is well, 1 problems were found, 2 nothing could be checked.",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        if args.workers is not None and args.workers < 1:
            raise UserError(argument="workers", received=f"{args.workers}", expected="at least 1")
        verdict = verify(args.directory, args.workers, True, args.records_root)
        print(json_of(verdict) if args.json else verdict)
        return 0 if verdict.ok else 1

    return command_line.run("imageshards verify", body, prints_result=True)
