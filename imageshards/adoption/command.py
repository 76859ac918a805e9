"""Implements `imageshards adopt DIR` and `imageshards.adopt`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shlex
from collections.abc import Container, Sequence
from typing import Any

from imageshards import storage
from imageshards.adoption.describe import describe
from imageshards.adoption.features import AdoptOptions
from imageshards.bounds import MAX_JSON_BYTES
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.commands.options import add_options
from imageshards.commands.output_folder import check_no_links
from imageshards.errors import Arg, UserError
from imageshards.manifest import INDEX_NAME, MANIFEST_NAME, ONE, SEVERAL, SPLIT_NAME, Manifest
from imageshards.manifest.file import common_root, outside_folders, publish_manifest
from imageshards.text import counted
from imageshards.tfrecord import RecordError
from imageshards.typed import convert, decode_object

# The files that `describe` names.
_INDEX_FILE = re.compile(rf"{SPLIT_NAME.pattern}-\d{{5,}}-[0-9a-f]{{8}}\.parquet")

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
    add_options(parser, AdoptOptions)
    return parser


def adopt(path: str | os.PathLike[str], **options: Any) -> Manifest:
    """Writes a manifest and an index for existing TFRecords, like `imageshards adopt`.

        ims.adopt("flowers/", class_names=["rose", "tulip"], split={"train": "flowers/a*"})

    Args:
        path: A folder of TFRecords, or of a TFDS dataset, local or in a store.
        **options: Flags of `imageshards adopt`, which its `--help` explains, without the dashes:
            `output`, `feature_map` (a dict), `label_offset`, `class_names` (a list), `split` (a
            dict, or pairs of a name and a place), `label` and `max_image_mpx`.

    Returns:
        The manifest.

    Raises:
        UserError: The files, features or labels are not usable for training.
    """
    asked = AdoptOptions(**options)
    directory = storage.absolute_place("DIR", path)
    output = asked.output or directory
    argument = "output" if asked.output else "DIR"
    # A wrong output must fail before all files are read, which may take hours.
    storage.check_bucket(output, argument)
    check_no_links(argument, output, INDEX_NAME)
    try:
        before = _index_before(output)
        manifest, indexes = describe(directory, output, asked)
        storage.delete_unfinished(output, MANIFEST_NAME, INDEX_NAME)
        try:
            # No file has the name of a different one, so the dataset before stays whole.
            for file, data in indexes.items():
                storage.write(storage.join(output, file), data)
        except BaseException:  # Ctrl-C, too, must leave only the dataset before.
            _delete_index(output, before or ())
            raise
        manifest = publish_manifest(output, manifest, replaces=before is not None)
        _delete_index(output, indexes)
        return manifest
    except (RecordError, OSError) as e:
        what = str(e).rstrip(".")
        if isinstance(e, OSError):
            what = f"{e.filename or 'a file'} cannot be read or written ({e.strerror or e})"
        raise UserError(
            argument="DIR",
            received=f"{directory!r}: {what}",
            expected="whole TFRecords, and a folder that may be written",
            remedy="decompress a compressed file, copy a damaged one again or leave it out by "
            + (Arg("split", "NAME=GLOB") + ", or give another folder by ")
            + Arg("output"),
        ) from e


def _index_before(output: str) -> set[str] | None:
    """Returns the index files of the dataset that is replaced; None if there is no dataset.

    The dataset of a build is refused.
    """
    found: dict[str, Any] = {}
    files = set()
    try:
        with contextlib.suppress(ValueError):  # A damaged manifest names no files.
            found = decode_object(
                storage.read(storage.join(output, MANIFEST_NAME), MAX_JSON_BYTES + 1)
            )
            files = {shard.index.file for _, shard in convert(found, Manifest).shards()}
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
        output = args.get("output") or args["directory"]
        manifest = adopt(args.pop("directory"), **args)
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
