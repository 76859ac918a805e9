"""Exports a trained model for serving: `python -m trainer.export`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from imageshards.errors import UserError
from trainer.commands import console
from trainer.dataset.spec import ModelCard
from trainer.imports import quiet_import
from trainer.serving import model_file

if TYPE_CHECKING:
    import argparse

PROGRAM = "python -m trainer.export"
FORMATS = ("saved_model", "tflite", "keras")
LABELS_FILE = "labels.txt"

_SUFFIXES = {"tflite": ".tflite", "keras": ".keras"}
_EPILOG = (
    "saved_model: a folder for TensorFlow Serving or tf.saved_model.load; its signature takes the "
    "bytes of image files (and raw columns where the model has such inputs) and gives class, "
    "class_id, probability and probabilities. tflite: one file that takes decoded pixels, "
    "0..255, of the model's own size and gives probabilities; labels.txt, one class a line, is "
    "written beside it. "
    "keras: a copy of the .keras file."
)


def make_parser() -> console.Parser:
    """The flags of `python -m trainer.export`."""
    parser = console.Parser(prog=PROGRAM, description=__doc__, allow_abbrev=False, epilog=_EPILOG)
    parser.add_argument(
        "--model_path",
        required=True,
        metavar="PATH",
        help="model.keras that python -m trainer wrote, or its output folder",
    )
    parser.add_argument("--format", required=True, choices=FORMATS, help="what to write")
    parser.add_argument(
        "--output",
        required=True,
        metavar="PATH",
        help="new folder for saved_model; file ending in .tflite or .keras for the others",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replaces an earlier export of the same format"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the export.

    Args:
        argv: Command line without the program's name; None for `sys.argv`.

    Returns:
        0, or 2 for a user's mistake, or 130 after Ctrl-C.
    """

    def body() -> int:
        for line in export(make_parser().parse(argv)):
            print(line)
        return 0

    return console.run(PROGRAM, body)


def export(args: argparse.Namespace) -> list[str]:
    """Writes the export, whole or not at all.

    Args:
        args: `model_path`, `format`, `output`, `overwrite`.

    Returns:
        Lines that say what was written and how to call it.

    Raises:
        UserError: The model cannot be read, or the output not be written.
    """
    output = os.path.normpath(args.output)
    check_output(output, args.format, args.overwrite)
    card = model_file.read_card(args.model_path)
    if args.format == "tflite":
        _check_labels(card, output, args.overwrite)
    if args.format == "keras":
        source = model_file.find_model(args.model_path)
        return _written(output, lambda path: _copied(source, path, output))
    with quiet_import():
        from trainer.serving import servable

        model, card = model_file.load_model(args.model_path)
    if args.format == "tflite":
        lines = _written(output, lambda path: servable.write_tflite(model, card, path))
        return [*lines, *_write_labels(card, output)]
    transform = model_file.find_transform(args.model_path)
    return _written(output, lambda path: servable.write_saved_model(model, card, transform, path))


def check_output(output: str, kind: str, overwrite: bool) -> None:
    """Refuses an output of the wrong kind, and one that is there already.

    Raises:
        UserError: Of either.
    """
    suffix = _SUFFIXES.get(kind)
    if suffix and not output.endswith(suffix):
        raise UserError(
            f"--output received {output!r}; expected a file name ending in {suffix}, which "
            f"--format {kind} writes."
        )
    if not os.path.lexists(output):
        return
    if not overwrite:
        raise UserError(
            f"--output received {output!r}, which is there already; use another name, or "
            "--overwrite to replace it."
        )
    whole = os.path.isfile(output) if suffix else _is_saved_model(output)
    if not whole:
        raise UserError(
            f"--output received {output!r} with --overwrite, which is not a {kind} export; "
            "expected one, or a new name: nothing else is replaced."
        )


def _check_labels(card: ModelCard, output: str, overwrite: bool) -> None:
    """Refuses to replace a file beside the output that names other classes, or is anything else."""
    path = _labels_path(output)
    if not os.path.lexists(path):
        return
    is_file = os.path.isfile(path)
    if is_file and overwrite:
        return
    if is_file:
        with open(path, "rb") as f:
            if f.read() == _labels_text(card).encode():
                return
    raise UserError(
        f"--output received {output!r}, beside which {LABELS_FILE} is there already, with other "
        "contents than the names of the model's classes; use another folder"
        + (", or --overwrite to replace it." if is_file else ".")
    )


def _is_saved_model(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "saved_model.pb")) and not os.path.islink(folder)


def _written(output: str, write: Callable[[str], list[str]]) -> list[str]:
    """Calls `write` with a temporary path beside `output`, then renames that to `output`."""
    folder, name = os.path.split(output)
    # The same suffix: Keras insists on its own.
    temporary = os.path.join(folder, f".{os.getpid()}-{name}")
    try:
        os.makedirs(folder or ".", exist_ok=True)
        lines = write(temporary)
        if os.path.isdir(output) and os.path.isdir(temporary):
            shutil.rmtree(output)
        os.replace(temporary, output)
    except OSError as e:
        raise UserError(
            f"--output received {output!r}, which cannot be written ({e.strerror or e}); make "
            "room, or use a place where you may write."
        ) from e
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary)
        elif os.path.exists(temporary):
            os.remove(temporary)
    return [f"written  {output}", *lines]


def _copied(source: str, path: str, output: str) -> list[str]:
    if os.path.exists(output) and os.path.samefile(source, output):
        raise UserError(
            f"--output received {output!r}, which is the model itself; use another name."
        )
    shutil.copyfile(source, path)
    return ["load it with keras.saving.load_model: pixels 0..255 in, logits out"]


def _labels_path(output: str) -> str:
    return os.path.join(os.path.dirname(output), LABELS_FILE)


def _labels_text(card: ModelCard) -> str:
    return "".join(f"{name}\n" for name in card.classes)


def _write_labels(card: ModelCard, output: str) -> list[str]:
    def write(path: str) -> list[str]:
        with open(path, "w", encoding="utf-8") as f:
            f.write(_labels_text(card))
        return []

    path = _labels_path(output)
    _written(path, write)
    return [f"labels   {path}"]


if __name__ == "__main__":
    sys.exit(main())
