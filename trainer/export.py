"""Exports a trained model for serving: `imageshards export`."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

from imageshards import storage
from imageshards.commands.command_line import Parser
from imageshards.commands.options import Option, add_options
from imageshards.commands.output_folder import output_errors
from imageshards.errors import Arg, UserError, names_arguments
from trainer.commands import (
    ARGUMENTS,
    ModelOptions,
    chosen,
    run,
)
from trainer.imports import callers_settings, quiet_import
from trainer.serving.model_file import SavedModel, find_model, find_transform

PROGRAM = "imageshards export"
_SAVED_MODEL = "saved_model.pb"
_EPILOG = (
    "TensorFlow Serving and tf.saved_model.load read the folder. The model's signature takes the "
    "bytes of image files, and raw columns if the model has further inputs. The signature returns "
    "class, class_id, probability and probabilities. A model of several labels returns classes and "
    "probabilities of all labels; a regression model returns values."
)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of an export."""

    # fmt: off
    output: Annotated[str, Option(
        "new folder: local, gs:// or s3://", place=storage.place, metavar="PATH")]
    overwrite: Annotated[bool, Option("replace an earlier export")] = False
    # fmt: on


def make_parser() -> Parser:
    """Returns the parser of `imageshards export`."""
    parser = Parser(
        prog=PROGRAM,
        description="Exports a trained model for serving, as a SavedModel.",
        epilog=_EPILOG,
    )
    add_options(parser, ModelOptions)
    add_options(parser, _Options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `imageshards export`; returns its exit code, as `commands.run` does."""

    def body() -> int:
        asked = vars(make_parser().parse_args(argv))
        path = asked.pop("model_path")
        saved, lines = write_export(path, **asked)
        print(f"model    {chosen(path, saved.file, saved.card.step)}")
        print("\n".join(lines))
        return 0

    return run(PROGRAM, body)


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

    The SavedModel takes the bytes of image files. It is written whole or not at all.

    Args:
        model: Output folder of `imageshards train`, or a `.keras` file in it, local, `gs://` or
            `s3://`.
        output: New folder, local, `gs://` or `s3://`.
        overwrite: Replaces an earlier export, but nothing else.
        last: Takes a folder's model after the last step, not the one with the lowest val_loss.
        code: `module:function` from the training, if the model needs your code.
        trust: Runs any code that the model's file names or contains.

    Returns:
        The path of the export.

    Raises:
        UserError: The model does not exist, `output` exists or cannot be written, or the model is a
            compiled one whose outputs have no known meaning.
    """
    write_export(model, output, overwrite, last=last, code=code, trust=trust)
    return _normal(output)


def _normal(output: str | os.PathLike[str]) -> str:
    path = storage.place("output", output)
    return os.path.normpath(path) if storage.is_local(path) else path.rstrip("/")


def write_export(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    overwrite: bool = False,
    **options: Any,
) -> tuple[SavedModel, list[str]]:
    """Writes an export; returns its model, found with `options`, and lines that describe it."""
    output = _normal(output)
    check_output(output, overwrite)
    saved = find_model(model, **options)
    with quiet_import():
        from trainer.serving.predictor import write_saved_model

        network = saved.load_for_serving()
    transform = find_transform(saved.file)
    # TensorFlow writes to a local folder, from which the files are uploaded to a store.
    folder: AbstractContextManager[str] = tempfile.TemporaryDirectory()
    with output_errors(output, "the export"):
        if storage.is_local(output):
            # A rename is atomic within one file system only, so the folder is made beside it.
            beside = storage.parent_of(output) or "."
            os.makedirs(beside, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=".export-", dir=beside)
        with folder as near:
            made = os.path.join(near, storage.name_of(output))
            lines = write_saved_model(network, saved.card, transform, made)
            storage.delete_folder(output)
            if storage.is_local(output):
                storage.move(made, output)
            else:
                # saved_model.pb comes last: readers take a folder that has it for a SavedModel.
                files = [file.path for file in storage.files_below(made)]
                for path in sorted(files, key=lambda path: storage.name_of(path) == _SAVED_MODEL):
                    storage.copy(path, storage.join(output, os.path.relpath(path, made)))
    return saved, [f"written  {output}", *lines]


def check_output(output: str, overwrite: bool) -> None:
    """Refuses an output that exists, unless it is an export and `overwrite` is set."""
    storage.check_bucket(output, "output")
    # A broken link also takes the name.
    is_there = os.path.lexists if storage.is_local(output) else storage.exists
    if not (is_there(output) or storage.is_folder(output)):
        return
    if not overwrite:
        raise UserError(
            argument="output",
            received=f"{output!r}, which exists already",
            remedy="use another name, or " + Arg("overwrite", True) + " to replace it",
        )
    # A link to an export is refused, too: only a folder that an export made is replaced.
    if not storage.exists(storage.join(output, _SAVED_MODEL)) or os.path.islink(output):
        raise UserError(
            argument="output",
            received=f"{output!r} with " + Arg("overwrite", True) + ", which is no earlier export",
            expected="an earlier export, or a new name",
            remedy="the command replaces only exports",
        )


if __name__ == "__main__":
    sys.exit(main())
