"""`imageshards verify DIR`: re-reads a data set and lists all its problems."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.errors import UserError
from imageshards.text import counted

if TYPE_CHECKING:
    from beam_pipeline.verify.shard import Problem, ShardResult

DEFAULT_SAMPLE = 32

# In the order of the table.
CHECKS = {
    "manifest": "agrees with itself",
    "files": "listed shards are there, no other, with the right size",
    "checksums": "SHA-256 of every shard",
    "framing": "CRC32C of every length and payload, no truncated tail",
    "records": "records per shard and split",
    "classes": "records of every class per shard",
    "balance": "shards differ by at most one record",
    "schema": "names, types and lengths of every feature",
    "labels": "label, text and class list agree",
    "keys": "no key twice, over all splits",
    "pictures": "sizes of all pictures, decode of a sample",
    "index": "index/ says where each record is and what it holds",
    "accounting": "listed = records + rejects",
    "metadata": "features.json, dataset_info.json, croissant.json, transform/",
}


@dataclasses.dataclass
class Verdict:
    """What was found.

    Attributes:
        problems: In the order of `CHECKS`, then of the shards.
        found: Number of problems of every check, those not listed one by one included.
        notes: Sentences that are no problems.
        not_looked_at: Check → shards in which it could not be made.
    """

    directory: str
    problems: list[Problem] = dataclasses.field(default_factory=list)
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    notes: list[str] = dataclasses.field(default_factory=list)
    not_looked_at: Counter[str] = dataclasses.field(default_factory=Counter)
    num_shards: int = 0
    num_records: int = 0
    num_bytes: int = 0
    num_decoded: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the data set is what its manifest says."""
        return not self.problems


def verify(
    directory: str,
    sample: int | None = DEFAULT_SAMPLE,
    workers: int | None = None,
    show_progress: bool = False,
) -> Verdict:
    """Re-reads a data set whole.

    Args:
        directory: What a build wrote, here or in a store.
        sample: Pictures decoded per split, evenly spread over its records; None for all.
        workers: Processes; None for one per core.
        show_progress: Whether a terminal shows how far it is.

    Raises:
        UserError: There is no manifest that could be read, it is not of the form that builds
            write, or its store cannot be used.
    """
    from beam_pipeline.verify.data_set import data_set_problems, notes_of
    from imageshards import storage
    from imageshards.manifest import load_manifest

    started = time.monotonic()
    directory = directory if storage.is_local(directory) else directory.rstrip("/")
    storage.check_bucket(directory, "DIR")
    manifest = load_manifest(directory, "DIR", complete=True)
    verdict = Verdict(directory)
    results = _check_shards(directory, manifest, sample, workers, show_progress)
    found = data_set_problems(directory, manifest, results)
    verdict.notes = notes_of(manifest, directory, results)
    for result in results:
        found.extend(result.problems)
        verdict.found.update(result.hidden)
        verdict.not_looked_at.update(result.not_looked_at)
        verdict.num_shards += bool(result.sha256)  # it was read
        verdict.num_records += result.num_records
        verdict.num_bytes += result.num_bytes
        verdict.num_decoded += result.num_decoded
    verdict.found.update(problem.check for problem in found)
    order = list(CHECKS)
    verdict.problems = sorted(found, key=lambda problem: order.index(problem.check))
    verdict.seconds = time.monotonic() - started
    return verdict


def sampled_records(counts: Sequence[int], sample: int | None) -> list[frozenset[int] | None]:
    """Which records of every shard are decoded: `sample` in all, evenly spread.

    Args:
        counts: Records per shard of one split.
        sample: Records wanted; None for all.

    Returns:
        Per shard the numbers of its records; None for all.
    """
    if sample is None:
        return [None] * len(counts)
    total = sum(counts)
    sample = min(sample, total)
    wanted = iter([(2 * i + 1) * total // (2 * sample) for i in range(sample)])
    position = next(wanted, total)
    start, chosen = 0, []
    for count in counts:
        mine = set()
        while position < start + count:
            mine.add(position - start)
            position = next(wanted, total)
        chosen.append(frozenset(mine))
        start += count
    return list(chosen)


def _check_shards(
    directory: str,
    manifest: Mapping[str, Any],
    sample: int | None,
    workers: int | None,
    show_progress: bool,
) -> list[ShardResult]:
    """Checks all shards of a manifest, by several processes; results in its order.

    Raises:
        UserError: A process was killed.
    """
    from concurrent.futures.process import BrokenProcessPool

    from beam_pipeline.verify.shard import ShardTask, check_shard
    from imageshards.manifest import first_label_of

    tasks = [
        ShardTask(
            directory,
            name,
            shard,
            manifest.get("compression", "none"),
            manifest["features"],
            tuple(manifest["classes"]),
            first_label_of(manifest),
            manifest["image"],
            decode,
        )
        for name, split in manifest["splits"].items()
        for shard, decode in zip(
            split["shards"],
            sampled_records([s["num_records"] for s in split["shards"]], sample),
            strict=True,
        )
    ]
    workers = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    try:
        with _process_map(workers) as process_map:
            results = process_map(check_shard, tasks)
            if show_progress:
                from imageshards.progress import with_progress

                results = with_progress(results, len(tasks), "shards", "verifying")
            return list(results)
    except BrokenProcessPool as e:
        raise UserError(
            "A process of the check was killed, most likely for lack of memory; "
            "run it again with a smaller --workers."
        ) from e


@contextlib.contextmanager
def _process_map(workers: int) -> Iterator[Callable[..., Iterable[ShardResult]]]:
    """`map` by several processes, or by this one."""
    if workers <= 1:
        yield map
        return
    # Not fork: the caller may run threads of Beam or TensorFlow.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, context, _ignore_interrupt) as pool:
        try:
            yield pool.map
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def text_of(verdict: Verdict) -> str:
    """The table of checks, the problems and the notes, for a terminal."""
    from imageshards.progress import text_table

    rows = []
    for check, what in CHECKS.items():
        count, unseen = verdict.found[check], verdict.not_looked_at[check]
        states = [f"{count} wrong"] * bool(count)
        states += [f"not looked at in {counted(unseen, 'shard')}"] * bool(unseen)
        rows.append((check, ", ".join(states) or "ok", what))
    lines = [text_table(("check", "result", "what was looked at"), rows, texts=(0, 1, 2)), ""]
    lines.extend(problem.message for problem in verdict.problems)
    hidden = sum(verdict.found.values()) - len(verdict.problems)
    if hidden:
        lines.append(f"… and {hidden} more of the same kinds in the same shards.")
    lines.extend(f"Note: {note}" for note in verdict.notes)
    total = sum(verdict.found.values())
    outcome = "All is well" if verdict.ok else counted(total, "problem")
    lines.append(
        f"{outcome}: {counted(verdict.num_records, 'record')}, {verdict.num_bytes / 1e6:.1f} MB in "
        f"{counted(verdict.num_shards, 'shard')} read, "
        f"{counted(verdict.num_decoded, 'picture')} decoded, {verdict.seconds:.1f} s."
    )
    if not verdict.ok:
        lines.append("To fix it, build again with --overwrite, or copy the files anew.")
    return "\n".join(lines)


def json_of(verdict: Verdict) -> str:
    """All of a verdict for programs."""
    document = {
        **{f.name: getattr(verdict, f.name) for f in dataclasses.fields(verdict)},
        "ok": verdict.ok,
        "problems": [problem._asdict() for problem in verdict.problems],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def make_parser() -> Parser:
    """The parser of `imageshards verify`."""
    parser = command_line.data_set_parser(
        "verify",
        "Re-reads a data set and names all that is wrong with it, by file, record and byte offset.",
        "Exit code: 0 all is well, 1 problems were found, 2 nothing could be checked.",
    )
    parser.add_argument("--full", action="store_true", help="decode every picture")
    parser.add_argument(
        "--sample",
        type=int,
        default=DEFAULT_SAMPLE,
        metavar="N",
        help="pictures to decode per split, spread over its shards (default: %(default)s)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        if args.sample < 0:
            raise UserError(f"--sample received {args.sample}; expected 0 or more.")
        if args.workers is not None and args.workers < 1:
            raise UserError(f"--workers received {args.workers}; expected at least 1.")
        sample = None if args.full else args.sample
        verdict = verify(args.directory, sample, args.workers, show_progress=True)
        print(json_of(verdict) if args.json else text_of(verdict))
        return 0 if verdict.ok else 1

    return command_line.run("imageshards verify", body)
