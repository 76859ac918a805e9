"""`imageshards export-index DIR --format dali`: where records are, as others read it.

For NVIDIA DALI a file `<shard>.idx` beside each shard: a text line `offset size` for each record,
in bytes, framing included, as its `tfrecord2idx` writes it. It is taken from the data set's own
index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.commands import command_line
from imageshards.commands.command_line import Parser, parse_path
from imageshards.errors import UserError
from imageshards.text import counted


def export_dali(directory: str) -> tuple[int, int]:
    """Writes the `.idx` files of a data set; returns their number and that of their records.

    Raises:
        UserError: There is no data set, or it is damaged or cannot be written.
    """
    from imageshards import storage
    from imageshards.index import index_schema, read_shard_index
    from imageshards.manifest import DALI_SUFFIX, load_manifest, shards_of
    from imageshards.progress import with_progress

    directory = parse_path("DIR", directory)
    storage.check_bucket(directory, "DIR")
    manifest = load_manifest(directory, "DIR")
    shards = [shard for _, shard in shards_of(manifest)]

    schema = index_schema({})

    def export(shard: Mapping[str, Any]) -> int:
        table = read_shard_index(directory, shard, schema, "DIR")
        places = zip(table["offset"].to_pylist(), table["num_bytes"].to_pylist(), strict=True)
        lines = [f"{offset} {size}\n" for offset, size in places]
        storage.write(storage.join(directory, shard["file"] + DALI_SUFFIX), "".join(lines))
        return len(lines)

    try:
        exported = storage.map_concurrently(export, shards)
        counts = list(with_progress(exported, len(shards), "shards", "writing .idx files:"))
    except OSError as e:
        raise UserError(
            f"DIR received {directory!r}, where {e.filename or 'a file'} cannot be read or written "
            f"({e.strerror or e}); expected all its shards, and a folder that may be written: fix "
            "its permissions, or copy the data set again."
        ) from e
    return len(counts), sum(counts)


def make_parser() -> Parser:
    """The parser of `imageshards export-index`."""
    parser = command_line.data_set_parser(
        "export-index",
        "Writes beside each shard a file that says where its records are, for readers that need "
        "one.",
        "Exit code: 0 all files were written, 2 they could not be.",
    )
    parser.add_argument(
        "--format",
        choices=["dali"],
        default="dali",
        help="dali: <shard>.idx with a line `offset size` for each record (default: %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        files, records = export_dali(args.directory)
        wrote = f"{counted(files, '.idx file')} for {counted(records, 'record')}"
        print(f"wrote {wrote} beside the shards")
        return 0

    return command_line.run("imageshards export-index", body)
