"""Exports a trained model for serving: `imageshards export`."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from imageshards import storage
from imageshards.commands.command_line import Parser
from imageshards.errors import UserError
from trainer.commands import console
from trainer.commands.saved_model import add_model_flags, chosen, find_model, load_for_serving
from trainer.imports import quiet_import
from trainer.serving import model_file

if TYPE_CHECKING:
    import argparse

PROGRAM = "imageshards export"
_SAVED_MODEL = "saved_model.pb"
_EPILOG = (
    "Writes a folder for TensorFlow Serving or tf.saved_model.load; its signature takes the bytes "
    "of image files (and raw columns where the model has such inputs) and gives class, class_id, "
    "probability and probabilities; of a model that finds labels, classes and probabilities of all "
    "of them; of one that finds values, these."
)


def make_parser() -> Parser:
    """The flags of `imageshards export`."""
    parser = Parser(prog=PROGRAM, description=__doc__, epilog=_EPILOG)
    add_model_flags(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=functools.partial(storage.place, "--output"),
        metavar="PATH",
        help="new folder, local, gs:// or s3://",
    )
    parser.add_argument("--overwrite", action="store_true", help="replaces an earlier export")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, as `console.run` does."""

    def body() -> int:
        for line in export(make_parser().parse_args(argv)):
            print(line)
        return 0

    return console.run(PROGRAM, body)


def export(args: argparse.Namespace) -> list[str]:
    """Writes the export, whole or not at all; returns lines that say what it is."""
    output = args.output.rstrip("/")
    if storage.is_local(output):
        output = os.path.normpath(args.output)
    check_output(output, args.overwrite)
    source, card = find_model(args)
    lines = [f"model    {chosen(args, source, card)}"]
    with quiet_import():
        from trainer.serving import servable

        model = load_for_serving(source, args)
    transform = model_file.find_transform(source)
    return lines + _written(
        output, lambda path: servable.write_saved_model(model, card, transform, path)
    )


def check_output(output: str, overwrite: bool) -> None:
    """Refuses an output that is there already, unless it is an export to be replaced."""
    storage.check_bucket(output, "--output")
    if not _is_there(output):
        return
    if not overwrite:
        raise UserError(
            f"--output received {output!r}, which is there already; use another name, or "
            "--overwrite to replace it."
        )
    if not storage.exists(storage.join(output, _SAVED_MODEL)) or os.path.islink(output):
        raise UserError(
            f"--output received {output!r} with --overwrite, which is no export; expected one, or "
            "a new name: nothing else is replaced."
        )


def _is_there(path: str) -> bool:
    if storage.is_local(path):
        return os.path.lexists(path)
    return storage.exists(path) or storage.is_folder(path)


def _written(output: str, write: Callable[[str], list[str]]) -> list[str]:
    """Calls `write` with a temporary path of this machine, then moves what it wrote to `output`."""
    folder: AbstractContextManager[str] = storage.temporary_folder()
    try:
        if storage.is_local(output):
            beside = storage.parent_of(output) or "."
            os.makedirs(beside, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=".export-", dir=beside)
        with folder as near:
            made = os.path.join(near, storage.name_of(output))
            lines = write(made)
            storage.delete_folder(output)
            if storage.is_local(output):
                storage.move(made, output)
            else:
                _upload(made, output)
    except OSError as e:
        raise UserError(
            f"--output received {output!r}, which cannot be written ({e.strerror or e}); make "
            "room, or use a place where you may write."
        ) from e
    return [f"written  {output}", *lines]


def _upload(folder: str, output: str) -> None:
    """Uploads a SavedModel, last of it the file by which others know that it is one."""
    files = [file.path for file in storage.files_below(folder)]
    for path in sorted(files, key=lambda path: storage.name_of(path) == _SAVED_MODEL):
        storage.upload(path, storage.join(output, os.path.relpath(path, folder)))


if __name__ == "__main__":
    sys.exit(main())
