"""`imageshards adopt DIR`: gives existing TFRecords a manifest and an index, in one pass."""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import shlex
from collections.abc import Container, Sequence
from typing import Any

from imageshards import storage
from imageshards.adopt.describe import describe
from imageshards.adopt.features import AdoptOptions
from imageshards.bounds import MAX_JSON_BYTES
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.commands.options import add_options
from imageshards.commands.output_folder import check_no_links
from imageshards.errors import Arg, UserError
from imageshards.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    ONE,
    SEVERAL,
    SPLIT_NAME,
    Manifest,
    common_root,
    outside_folders,
    publish_manifest,
)
from imageshards.text import counted
from imageshards.tfrecord import RecordError
from imageshards.typed import convert, decode_object

# The files that `describe` names.
_INDEX_FILE = re.compile(rf"{SPLIT_NAME.pattern}-\d{{5,}}(-[0-9a-f]{{8}})?\.parquet")

_EPILOG = """examples:
  imageshards adopt ~/tensorflow_datasets/rock_paper_scissors/3.0.0
  imageshards adopt flowers/ --class_names rose,tulip,daisy
  imageshards adopt gs://theirs/imagenet/ --output imagenet/ --label_offset 1
  imageshards adopt dogs/ --split 'train=dogs/a*' --split validation=more/

Exit code: 0 manifest and index were written, 2 nothing was changed."""


def make_parser() -> Parser:
    """Returns the parser of `imageshards adopt`."""
    parser = Parser(
        prog="imageshards adopt",
        description="Reads existing TFRecords of images, from any tool, and writes a "
        "manifest.json\nand an index for them. The other commands can then train on the "
        "records and\n"
        "evaluate with them. The records do not change.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=functools.partial(storage.absolute_place, "DIR"),
        help="a folder of TFRecords, or of a TFDS dataset: local, gs:// or s3://",
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=functools.partial(storage.absolute_place, "output"),
        help="folder for the manifest and the index (default: DIR). If the records are not below "
        "this folder, all other commands need --records_root",
    )
    add_options(parser, AdoptOptions)
    return parser


def adopt(
    directory: str, output: str | None = None, options: AdoptOptions | None = None
) -> Manifest:
    """Writes the manifest and the index of existing TFRecords.

    Args:
        directory: A folder of TFRecords or of TFDS.
        output: Folder for manifest and index; None for the folder of the files.
        options: Facts that the files do not contain.

    Raises:
        UserError: The files, features or labels are not usable for training.
    """
    output = output or directory
    # A wrong output must fail before all files are read, which may take hours.
    storage.check_bucket(output, "output" if output != directory else "DIR")
    check_no_links("output", output, INDEX_NAME)
    try:
        known = _index_before(output) or {}
        manifest, indexes = describe(directory, output, options or AdoptOptions(), known)
        storage.delete_unfinished(output, MANIFEST_NAME, INDEX_NAME)
        try:
            for file, data in indexes.items():
                storage.write(storage.join(output, file), data)
        except BaseException:  # Ctrl-C, too, must leave only the dataset before.
            _delete_index(output, known)
            raise
        # The dataset before is whole until the new manifest replaces the old one.
        manifest = publish_manifest(output, manifest, replaces=_index_before(output) is not None)
        _delete_index(output, indexes)
        return manifest
    except RecordError as e:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, which is damaged: {str(e).rstrip('.')}",
            expected="whole TFRecords",
            remedy="copy the file again, or leave it out by " + Arg("split", "NAME=GLOB"),
        ) from e
    except OSError as e:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, where {e.filename or 'a file'} cannot be read or written "
            f"({e.strerror or e})",
            expected="TFRecords, and a folder that may be written",
            remedy="copy them again, or give another folder by " + Arg("output"),
        ) from e


def _index_before(output: str) -> dict[str, str] | None:
    """Returns the index files, with their SHA-256, of the dataset that is replaced.

    None means that there is no dataset. The dataset of a build is refused.
    """
    found: dict[str, Any] = {}
    files: dict[str, str] = {}
    try:
        with contextlib.suppress(ValueError):  # A damaged manifest names no files.
            data = storage.read(storage.join(output, MANIFEST_NAME), MAX_JSON_BYTES + 1)
            found = decode_object(data)
            shards = convert(found, Manifest).shards()
            files = {shard.index.file: shard.index.sha256 for _, shard in shards}
    except FileNotFoundError:
        return None
    if "adopted" not in found:
        raise UserError(
            argument="DIR",
            received=f"{output!r}, whose {MANIFEST_NAME} imageshards adopt did not write",
            expected="TFRecords that imageshards build did not write",
            remedy="give another folder by " + Arg("output") + ", or delete the file if it is "
            "damaged",
        )
    return files


def _delete_index(output: str, kept: Container[str]) -> None:
    """Deletes the files of other indexes that `adopt` wrote; ignores errors, as they do no harm."""
    with contextlib.suppress(OSError):
        found = storage.list_folder(storage.join(output, INDEX_NAME))
        names = [each.name for each in found if _INDEX_FILE.fullmatch(each.name)]
        others = [name for name in names if f"{INDEX_NAME}/{name}" not in kept]
        storage.delete(storage.join(output, INDEX_NAME, name) for name in others)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""

    def body() -> int:
        args = vars(make_parser().parse_args(argv))
        directory = args.pop("directory")
        output = args.pop("output") or directory
        manifest = adopt(directory, output, AdoptOptions(**args))
        splits = ", ".join(
            f"{name} {counted(split.num_records, 'record')}"
            for name, split in manifest.splits.items()
        )
        noun = {ONE: "class", SEVERAL: "label"}.get(manifest.label)
        labels = counted(len(manifest.classes), noun) if noun else "no labels"
        print(f"wrote {storage.join(output, MANIFEST_NAME)}: {splits}; {labels}")
        if folders := outside_folders(manifest):
            root = shlex.quote(common_root(folders))
            print(f"the shards stay where they are: every command needs --records_root {root}")
        return 0

    return command_line.run("imageshards adopt", body)
