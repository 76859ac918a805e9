"""`imageshards adopt DIR`: TFRecords that others wrote become a data set to train on."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence

from imageshards import storage
from imageshards.adopt.adopt import adopt
from imageshards.adopt.features import AdoptOptions
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser, names_or_file
from imageshards.errors import UserError
from imageshards.manifest import MANIFEST_NAME
from imageshards.text import counted

_EPILOG = """examples:
  imageshards adopt ~/tensorflow_datasets/rock_paper_scissors/3.0.0
  imageshards adopt flowers/ --class_names rose,tulip,daisy
  imageshards adopt gs://theirs/imagenet/ --output imagenet/ --label_offset 1
  imageshards adopt dogs/ --split 'train=dogs/a*' --split validation=more/

A data set of an older imageshards build gets its index by the same command.
Exit code: 0 manifest and index are written, 2 they could not be."""


def make_parser() -> Parser:
    """The parser of `imageshards adopt`."""
    parser = Parser(
        prog="imageshards adopt",
        description="Reads TFRecords that others wrote, once, and writes a manifest.json and an\n"
        "index for them, by which they are trained and evaluated on. The records stay as\n"
        "they are; files that are compressed as a whole are copied, decompressed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="a folder of TFRecords or of TFDS, or one that a build wrote: local, gs:// or s3://",
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="writes them there, pointing at the records (default: beside the records)",
    )
    parser.add_argument(
        "--split",
        action="append",
        default=[],
        type=functools.partial(_pair, "--split", "validation=FOLDER or 'train=FOLDER/a*'"),
        metavar="NAME=PLACE",
        help="folder, file or glob of a split's files; once for each (default: as the names of "
        "folders or files in DIR say: train, validation, test)",
    )
    parser.add_argument(
        "--feature_map",
        type=_feature_map,
        default={},
        metavar="image=A,label=B",
        help="which features are image, label, filename and text (default: the usual names)",
    )
    parser.add_argument(
        "--label_offset",
        type=int,
        default=0,
        metavar="N",
        help="the label of the first class: 1 for labels that begin at 1 (default: %(default)s)",
    )
    parser.add_argument(
        "--class_names",
        type=functools.partial(names_or_file, "--class_names"),
        metavar="A,B|FILE",
        help="names of the classes in the order of their ids (default: TFDS's, the texts beside "
        "the labels, else their numbers)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        directory, output = _path(args.directory), args.output and _path(args.output)
        splits = tuple((name, _path(place)) for name, place in args.split)
        options = AdoptOptions(args.feature_map, args.label_offset, args.class_names, splits)
        storage.check_bucket(output or directory, "--output" if output else "DIR")
        try:
            told = adopt(directory, output, options)
        except OSError as e:
            raise UserError(
                f"DIR received {directory!r}, where {e.filename or 'a file'} cannot be read or "
                f"written ({e.strerror or e}); expected a folder that may be written: give another "
                "by --output."
            ) from e
        written = storage.join(output or directory, MANIFEST_NAME)
        splits_told = ", ".join(
            f"{name} {counted(split['num_records'], 'record')}"
            for name, split in told["splits"].items()
        )
        print(f"wrote {written}: {splits_told}; {counted(len(told['classes']), 'class')}")
        return 0

    return command_line.run("imageshards adopt", body)


def _path(text: str) -> str:
    if storage.is_local(text):
        return os.path.abspath(os.path.expanduser(text))
    return text.rstrip("/")


def _pair(flag: str, example: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise UserError(f"{flag} received {text!r}; expected NAME=VALUE, for example {example}.")
    return name.strip(), value.strip()


def _feature_map(text: str) -> dict[str, str]:
    example = "image=image_raw,label=class"
    return dict(_pair("--feature_map", example, part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
