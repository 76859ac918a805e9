"""`imageshards remove DIR --keys FILE`: takes records out of a finished data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser


def remove(directory: str, keys: str) -> str:
    """Removes the records with the keys of a file; returns what to print.

    Args:
        directory: The data set, here or in a store.
        keys: File of keys, as `--exclude` of a build takes them.

    Raises:
        UserError: As `remove_records` and `read_keys`.
    """
    from beam_pipeline.cli import parse_path
    from beam_pipeline.commit.removal import remove_records
    from beam_pipeline.inputs.selection import read_keys
    from imageshards import storage
    from imageshards.progress import ProgressLine, activity_line, note_activity

    directory = parse_path("DIR", directory)
    storage.check_bucket(directory, "DIR")
    note_activity("")
    with ProgressLine(activity_line, "reading --keys ..."):
        done = remove_records(directory, read_keys(keys, "--keys"), keys)
    said = [
        f"records removed from {directory}: {done.records:,}; shards written again: "
        f"{done.shards:,} of {done.of_shards:,}; records moved to keep shards even: {done.moved:,}"
    ]
    if storage.is_folder(storage.join(directory, "duplicates")):
        said.append(
            f"{directory}/duplicates still has the keys of these records, and may show them; "
            f"delete it, or make it again with imageshards duplicates {directory}"
        )
    if done.lost_idx:
        said.append(
            "the .idx files of these shards are gone; write them again with "
            f"imageshards export-index {directory} --format dali"
        )
    return "\n".join(said)


def make_parser() -> Parser:
    """The parser of `imageshards remove`."""
    parser = command_line.data_set_parser(
        "remove",
        "Takes records out of a finished data set, in place: only the shards that hold them are "
        "written again, and those that give a record to keep all even.",
        "Exit code: 0 done, 2 something to fix, 130 stopped by Ctrl-C. Run the same command again "
        "to resume one that was stopped or killed.",
    )
    parser.add_argument(
        "--keys", required=True, metavar="FILE",
        help="a text file with a key on each line, a .parquet file with a column key, or a data "
        "set or its index/; a key that DIR has not is an error",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        print(remove(args.directory, args.keys))
        return 0

    return command_line.run(
        "imageshards remove", body, "stopped; run the same command again to resume"
    )


if __name__ == "__main__":
    sys.exit(main())
