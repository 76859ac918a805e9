"""The command: finds duplicates, writes the page, the JSON and the keys file."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.errors import UserError
from imageshards.manifest import DUPLICATES_NAME
from imageshards.storage import absolute_place
from imageshards.text import counted

if TYPE_CHECKING:
    from imageshards.duplicates.twins import Twin

DEFAULT_DISTANCE = 4
MAX_DISTANCE = 10
JSON_NAME = "duplicates.json"
EXCLUDE_NAME = "exclude.txt"
_SHOWN = 10  # duplicates that the terminal names

_EPILOG = """\
Exit codes: 0 done, whatever was found; 1 failed; 2 something to fix; 130
stopped by Ctrl-C.

example:
  imageshards duplicates shards/
  imageshards build --input photos/ --output clean/ \\
      --exclude shards/duplicates/exclude.txt
"""


def make_parser() -> Parser:
    """The parser of `imageshards duplicates`."""
    parser = command_line.data_set_parser(
        "duplicates",
        "Finds equal and nearly equal pictures of a data set, within and between its\n"
        "splits: decodes each picture once, and writes a page with the pairs side by\n"
        "side, a JSON for machines, and a file of keys for --exclude.",
        _EPILOG,
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--distance", type=int, default=DEFAULT_DISTANCE, metavar="BITS",
        help="bits of 64 in which the difference hashes of near duplicates differ at most; 0 for "
        f"equal hashes only (default: {DEFAULT_DISTANCE})")  # fmt: skip
    add("--output", metavar="FOLDER", type=functools.partial(absolute_place, "--output"),
        help=f"folder for the page and its files (default: DIR/{DUPLICATES_NAME})")  # fmt: skip
    add("--workers", type=int, metavar="N", help="processes that decode (default: all cores)")
    return parser


def find(
    directory: str,
    distance: int,
    output: str | None,
    workers: int | None = None,
    records_root: str | None = None,
) -> str:
    """Finds the duplicates of a data set; returns what to print.

    Raises:
        UserError: It is no data set with an index, or an argument cannot be.
    """
    from imageshards import storage
    from imageshards.duplicates.page import page_of
    from imageshards.duplicates.search import find_twins
    from imageshards.manifest import PAGE_NAME, load_manifest, to_json
    from imageshards.output_folder import check_page_folder
    from imageshards.progress import ProgressLine

    if not 0 <= distance <= MAX_DISTANCE:
        raise UserError(
            f"--distance received {distance}; expected 0 to {MAX_DISTANCE}: pictures that differ "
            "in more bits have little in common."
        )
    if workers is not None and workers < 1:
        raise UserError(f"--workers received {workers}; expected at least 1.")
    storage.check_bucket(directory, "DIR")
    manifest = load_manifest(
        directory, "DIR", complete=True, adopted=True, records_root=records_root
    )
    folder = output or storage.join(directory, DUPLICATES_NAME)
    check_page_folder("--output", folder, PAGE_NAME, JSON_NAME, EXCLUDE_NAME)
    exclude = storage.join(folder, EXCLUDE_NAME)
    probe = storage.join(folder, ".probe")
    with _output_errors(folder):
        storage.write(probe, b"")  # before the work
        storage.delete([probe])
        storage.delete_unfinished(folder, PAGE_NAME, JSON_NAME, EXCLUDE_NAME, ".probe")
    twins, undecodable = find_twins(directory, manifest, distance, workers)
    found = summary(manifest, distance, twins, undecodable)
    with ProgressLine(lambda: "drawing the page"):
        page = page_of(directory, manifest, twins, found, exclude)
    keys, unfit = key_lines([twin.other["key"] for twin in twins if twin.same_class])
    with _output_errors(folder):
        # First: it says that the others are ours, whenever this is stopped.
        storage.write(storage.join(folder, PAGE_NAME), page.encode())
        # A file that names no key is refused by --exclude.
        storage.write(exclude, keys.encode()) if keys else storage.delete([exclude])
        storage.write(storage.join(folder, JSON_NAME), to_json(found).encode())
    lines = [table_of(found), f"page: {storage.join(folder, PAGE_NAME)}"]
    if keys:
        lines.append(f"keys of those that should go: {exclude}")
    if unfit:
        lines.append(
            f"not in {EXCLUDE_NAME}: {counted(unfit, 'key')} that hold a line break; rename these "
            "files to leave them out"
        )
    lines += contradictions([twin for twin in twins if not twin.same_class])
    return "\n".join(lines)


def contradictions(twins: Sequence[Twin]) -> list[str]:
    """What to say of duplicates with different classes, of which nobody knows the wrong one."""
    if not twins:
        return []
    shown = [
        f"  {twin.kept['key']} ({twin.kept['class_name']}), "
        f"{twin.other['key']} ({twin.other['class_name']})"
        for twin in twins[:_SHOWN]
    ]
    more = [f"  and {len(twins) - _SHOWN:,} more"] if len(twins) > _SHOWN else []
    return [
        f"not in {EXCLUDE_NAME}: {counted(len(twins), 'duplicate')} of another class than the "
        "image that stays; correct the labels, or write the key of each wrong one into a file for "
        "--exclude:",
        *shown,
        *more,
    ]


@contextlib.contextmanager
def _output_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UserError(
            f"--output {folder!r} cannot be written ({e.strerror or e}); fix its permissions, or "
            "give another folder."
        ) from e


def key_lines(keys: Sequence[str]) -> tuple[str, int]:
    """The text of a file that `--exclude` reads, and how many of the keys no line can hold."""
    fit = [key for key in keys if "\n" not in key and not key.endswith("\r")]
    return "".join(f"{key}\n" for key in fit), len(keys) - len(fit)


def summary(
    manifest: Mapping[str, Any], distance: int, twins: Sequence[Twin], undecodable: int
) -> dict[str, Any]:
    """What duplicates.json says: counts, then each image that should go with its twin."""

    def image(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in ("key", "split", "class_name", "shard", "record")}

    counts = Counter((twin.splits, twin.exact) for twin in twins)
    return {
        "fingerprint": manifest["fingerprint"],
        "num_records": sum(split["num_records"] for split in manifest["splits"].values()),
        "distance": distance,
        "exact": sum(twin.exact for twin in twins),
        "near": sum(not twin.exact for twin in twins),
        "undecodable": undecodable,
        "splits": [
            {"kept": kept, "other": other}
            | {"exact": counts[(kept, other), True], "near": counts[(kept, other), False]}
            for kept, other in dict.fromkeys(twin.splits for twin in twins)
        ],
        "pairs": [
            {
                "exact": twin.exact,
                "distance": twin.distance,
                "kept": image(twin.kept),
                "other": image(twin.other),
            }
            for twin in twins
        ],
    }


def table_of(found: Mapping[str, Any]) -> str:
    """The counts, for a terminal."""
    lines = [
        f"{counted(found['num_records'], 'image')}: {found['exact']:,} exact and "
        f"{found['near']:,} near "
        f"duplicates (distance at most {found['distance']})"
    ]
    for each in found["splits"]:
        where = f"in {each['other']} of one in {each['kept']}"
        lines.append(f"  {where}: {each['exact']:,} exact, {each['near']:,} near")
    if found["undecodable"]:
        lines.append(
            f"{found['undecodable']:,} of {counted(found['num_records'], 'image')} cannot be "
            "decoded: near duplicates of these are not found"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        print(find(**vars(args)))
        return 0

    return command_line.run("imageshards duplicates", body)
