"""Implements `imageshards verify DIR` and `imageshards.verify`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Sequence

from imageshards import storage
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.errors import UserError
from imageshards.manifest import BUILD_AGAIN
from imageshards.progress import text_table, with_progress
from imageshards.text import counted, visible
from imageshards.verification.checks import Problem, check_shard, dataset_problems

# Check → what it looks at, in the order of the printed table.
CHECKS = {
    "manifest": "is consistent and matches its digest",
    "files": "all exist with the recorded size, and no other shard exists",
    "checksums": "SHA-256 of all files except in report/ and duplicates/",
    "records": "as many per shard and class as the manifest records",
    "balance": "shards differ by at most one record, also of each class",
    "keys": "no key occurs twice, also across splits",
    "index": "index/ matches the records of every shard",
    "accounting": "listed = records + rejects; quarantine holds all rejects",
}


@dataclasses.dataclass(repr=False)
class Verdict:
    """The result of `verify`, whose `repr` is the text that the command prints.

    Attributes:
        directory: The dataset.
        problems: The problems, in the order of `CHECKS`, then of the shards.
        num_shards, num_records, num_bytes: The shards, records and bytes that were read.
        seconds: The time that the check took.
        remedy: How to make the dataset again.
    """

    directory: str
    problems: list[Problem]
    num_shards: int
    num_records: int
    num_bytes: int
    seconds: float
    remedy: str = BUILD_AGAIN

    @property
    def ok(self) -> bool:
        """Whether the dataset matches its manifest."""
        return not self.problems

    @property
    def found(self) -> Counter[str]:
        """The number of problems of each check that found any."""
        return Counter(problem.check for problem in self.problems)

    def __repr__(self) -> str:
        """Returns the table of checks and the problems, for a terminal."""
        # A missing or damaged file may hide more problems of the same file.
        well = "ok where read" if {"files", "index"} & self.found.keys() else "ok"
        rows = [
            (check, f"{self.found[check]} wrong" if self.found[check] else well, what)
            for check, what in CHECKS.items()
        ]
        lines = [text_table(("check", "result", "what was checked"), rows, texts=(0, 1, 2)), ""]
        lines.extend(problem.message for problem in self.problems)
        outcome = "All is well" if self.ok else counted(len(self.problems), "problem")
        lines.append(
            f"{outcome}: {counted(self.num_records, 'record')}, {self.num_bytes / 1e6:.1f} MB in "
            f"{counted(self.num_shards, 'shard')} read, {self.seconds:.1f} s."
        )
        if not self.ok:
            lines.append(f"To fix it, copy the files anew, or {self.remedy}.")
        return visible("\n".join(lines))


def verify(
    path: str | os.PathLike[str],
    workers: int | None = None,
    show_progress: bool = False,
    records_root: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Reads all files of a dataset again and compares them with its manifest.

    Args:
        path: The dataset, local or in a store.
        workers: The number of processes; None for one per core.
        show_progress: Whether to show the progress on standard error.
        records_root: A place in which the manifest of an adopted dataset may name shards.

    Raises:
        UserError: The manifest is missing or damaged, the store cannot be used, a process was
            killed, or the dataset was replaced meanwhile.
    """
    started = time.monotonic()
    directory, manifest = command_line.open_dataset(path, records_root)
    shards = [shard for _, shard in manifest.shards()]
    check = functools.partial(check_shard, directory)
    checked = storage.map_in_processes(check, shards, workers)
    if show_progress:
        checked = with_progress(checked, len(shards), "shards", "verifying")
    # `map_in_processes` is lazy: the shards are read here, before the checks of the whole dataset.
    results = list(checked)
    found = [*dataset_problems(directory, manifest)]
    found += [problem for result in results for problem in result.problems]
    if found and command_line.open_dataset(directory, records_root)[1].digest != manifest.digest:
        # A build with --overwrite, or another adopt, has replaced the files that were compared.
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, which was replaced by another dataset while it was read",
            expected="a dataset that nobody changes",
            remedy="run the command again",
        )
    read = [result for result in results if result.sha256]  # Only a file that was read has one.
    order = list(CHECKS)
    return Verdict(
        directory,
        sorted(found, key=lambda problem: order.index(problem.check)),
        len(read),
        sum(result.num_records for result in read),
        sum(result.num_bytes for result in read),
        time.monotonic() - started,
        manifest.make_again,
    )


def json_of(verdict: Verdict) -> str:
    """Returns a verdict as JSON, for programs."""
    document = {
        **vars(verdict),
        "ok": verdict.ok,
        "found": verdict.found,
        "problems": [problem._asdict() for problem in verdict.problems],
    }
    return json.dumps(document, indent=1)


def make_parser() -> Parser:
    """Returns the parser of `imageshards verify`."""
    parser = command_line.dataset_parser(
        "verify",
        "Reads every file and record of a dataset, compares them with the manifest, and prints "
        "each "
        "problem with its file, record and byte offset.",
        "Exit code: 0 no problems, 1 problems were found, 2 nothing could be checked.",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of processes (default: all cores)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        if args.workers is not None and args.workers < 1:
            raise UserError(argument="workers", received=f"{args.workers}", expected="at least 1")
        verdict = verify(args.directory, args.workers, True, args.records_root)
        print(json_of(verdict) if args.json else verdict)
        return 0 if verdict.ok else 1

    return command_line.run("imageshards verify", body, prints_result=True)
