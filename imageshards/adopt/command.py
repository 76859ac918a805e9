"""`imageshards adopt DIR`: makes a dataset of existing TFRecords."""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Sequence

from imageshards import storage
from imageshards.adopt.adopt import adopt
from imageshards.adopt.features import AdoptOptions
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.commands.options import add_options
from imageshards.manifest import MANIFEST_NAME, ONE, SEVERAL
from imageshards.manifest.records_root import common_root, outside_folders
from imageshards.text import counted

_EPILOG = """examples:
  imageshards adopt ~/tensorflow_datasets/rock_paper_scissors/3.0.0
  imageshards adopt flowers/ --class_names rose,tulip,daisy
  imageshards adopt gs://theirs/imagenet/ --output imagenet/ --label_offset 1
  imageshards adopt dogs/ --split 'train=dogs/a*' --split validation=more/

Exit code: 0 manifest and index are written, 2 they could not be."""


def make_parser() -> Parser:
    """Returns the parser of `imageshards adopt`."""
    parser = Parser(
        prog="imageshards adopt",
        description="Reads existing TFRecords once and writes a manifest.json and an index, so\n"
        "that models can be trained and evaluated on them. The records do not change.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=functools.partial(storage.absolute_place, "DIR"),
        help="a folder of TFRecords or of TFDS: local, gs:// or s3://",
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=functools.partial(storage.absolute_place, "output"),
        help="folder for manifest and index, with which other commands need --records_root "
        "(default: beside the records)",
    )
    add_options(parser, AdoptOptions)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""

    def body() -> int:
        args = vars(make_parser().parse_args(argv))
        directory = args.pop("directory")
        output = args.pop("output") or directory
        options = AdoptOptions(**args)
        # A wrong output must fail before all files are read, which may take hours.
        storage.check_bucket(output, "output" if output != directory else "DIR")
        manifest = adopt(directory, output, options)
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
