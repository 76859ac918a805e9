"""Exports a trained model for serving: `imageshards export`."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from imageshards import storage
from imageshards.commands.command_line import Parser
from imageshards.errors import Arg, UserError, names_arguments
from trainer.commands import console
from trainer.commands.saved_model import (
    ARGUMENTS,
    SavedModel,
    add_model_flags,
    chosen,
    find_model,
    model_arguments,
)
from trainer.imports import callers_settings, quiet_import
from trainer.serving import model_file

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
        type=functools.partial(storage.place, "output"),
        metavar="PATH",
        help="new folder, local, gs:// or s3://",
    )
    parser.add_argument("--overwrite", action="store_true", help="replaces an earlier export")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, as `console.run` does."""

    def body() -> int:
        args = make_parser().parse_args(argv)
        saved, lines = write_export(
            args.model_path, args.output, args.overwrite, **model_arguments(args)
        )
        print(f"model    {chosen(args.model_path, saved.file, saved.card.step)}")
        print("\n".join(lines))
        return 0

    return console.run(PROGRAM, body)


@names_arguments(**ARGUMENTS)
@callers_settings()
def export(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    last: bool = False,
    code: str | None = None,
    trust: bool = False,
) -> str:
    """Exports a saved model for serving, as `imageshards export` does; prints nothing.

        served = tf.saved_model.load(ims.export("model/", "served/"))
        answer = served.signatures["serving_default"](image_bytes=tf.constant(files))

    The export is a SavedModel that takes the bytes of image files. It is written whole or not at
    all.

    Args:
        model: Output folder of `imageshards train`, or a `.keras` file of it, local, `gs://` or
            `s3://`.
        output: New folder, local, `gs://` or `s3://`.
        overwrite: Replaces an earlier export, and nothing else.
        last: Of a folder, takes the model after the last step, not that of the lowest val_loss.
        code: `module:function` of the training, where the model needs code of your own.
        trust: Runs whatever code the model's file names or holds.

    Returns:
        The path of the export.

    Raises:
        UserError: There is no such model, `output` is there already or cannot be written, or the
            model is a compiled one that does not say what it finds.
    """
    write_export(model, output, overwrite, last=last, code=code, trust=trust)
    return _normal(output)


def _normal(output: str | os.PathLike[str]) -> str:
    path = storage.place("output", output)
    return os.path.normpath(path) if storage.is_local(path) else path.rstrip("/")


def write_export(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    overwrite: bool,
    *,
    last: bool = False,
    code: str | None = None,
    trust: bool = False,
) -> tuple[SavedModel, list[str]]:
    """Writes the export; returns which model it was made of, and lines that say what it is."""
    output = _normal(output)
    check_output(output, overwrite)
    saved = find_model(model, last, code, trust)
    with quiet_import():
        from trainer.serving import servable

        network = saved.load_for_serving()
    transform = model_file.find_transform(saved.file)
    return saved, _written(
        output, lambda path: servable.write_saved_model(network, saved.card, transform, path)
    )


def check_output(output: str, overwrite: bool) -> None:
    """Refuses an output that is there already, unless it is an export to be replaced."""
    storage.check_bucket(output, "output")
    if not _is_there(output):
        return
    if not overwrite:
        raise UserError(
            argument="output",
            received=f"{output!r}, which is there already",
            remedy="use another name, or " + Arg("overwrite", True) + " to replace it",
        )
    if not storage.exists(storage.join(output, _SAVED_MODEL)) or os.path.islink(output):
        raise UserError(
            argument="output",
            received=f"{output!r}, which is no export, with " + Arg("overwrite", True),
            expected="an export, or a new name",
            remedy="nothing else is replaced",
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
            argument="output",
            received=f"{output!r}, which cannot be written ({e.strerror or e})",
            remedy="make room, or use a place where you may write",
        ) from e
    return [f"written  {output}", *lines]


def _upload(folder: str, output: str) -> None:
    """Uploads a SavedModel, last of it the file by which others know that it is one."""
    files = [file.path for file in storage.files_below(folder)]
    for path in sorted(files, key=lambda path: storage.name_of(path) == _SAVED_MODEL):
        storage.upload(path, storage.join(output, os.path.relpath(path, folder)))


if __name__ == "__main__":
    sys.exit(main())
