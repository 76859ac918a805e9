"""Predicts the classes, labels or values of pictures: `imageshards predict`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from imageshards import storage
from imageshards.commands.command_line import Parser
from imageshards.commands.options import Option, add_options, check_options, refuse_idle
from imageshards.errors import Arg, UserError, names_arguments
from imageshards.images.options import EXTENSIONS
from imageshards.manifest.file import RECORDS_ROOT_HELP
from imageshards.text import counted, printable
from trainer.commands import ARGUMENTS, ModelOptions, chosen, run
from trainer.imports import callers_settings, quiet_import
from trainer.serving.model_file import SavedModel, find_model, find_transform
from trainer.serving.pictures import (
    Pictures,
    find_files,
    pictures_of_files,
    pictures_of_input,
    pictures_of_split,
)

if TYPE_CHECKING:
    import argparse

    from trainer.dataset.spec import ModelCard
    from trainer.serving.predictor import Prediction, Predictor

PROGRAM = "imageshards predict"
EXIT_BROKEN_FILES = 1
TOP = 3

# The prediction for a picture, as the fields of a JSON object and as a line of text.
Shown = tuple[dict[str, Any], str]

_EPILOG = (
    "The command prepares files as the build prepared the training data: it applies EXIF "
    "orientation, then resizes and compresses as the dataset's manifest says. For a file that "
    "cannot be read, the row shows the reason; all other files are predicted, and the exit code is "
    "1. A model of several labels gives the labels with a probability of at least 0.5. A "
    "regression model gives each value with the name of its column."
)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of a prediction."""

    # fmt: off
    input: Annotated[str | None, Option(
        "pictures for --output: a table (.csv, .jsonl, .parquet) with paths, a folder, a glob, or "
        "an archive (.tar, .zip)", place=storage.place, metavar="PATH")] = None
    image_path: Annotated[str | None, Option(
        "path of a picture, relative to the table, with columns in braces: 'test/{id}.jpg' "
        "(default: the first column whose cell is the name of a picture)",
        metavar="TEMPLATE")] = None
    key_column: Annotated[str | None, Option(
        "column of the table that names a row (default: key or id, else the column of "
        "--image_path, else the path)", metavar="NAME")] = None
    data: Annotated[str | None, Option(
        "dataset whose records are the pictures for --output", place=storage.place,
        metavar="DIR")] = None
    records_root: Annotated[str | None, Option(
        RECORDS_ROOT_HELP, place=storage.place, metavar="PLACE")] = None
    split: Annotated[str | None, Option(
        "split of --data, or several as one: fold1,fold2 (default: test, or else validation, val "
        "or valid)", metavar="A,B")] = None
    output: Annotated[str | None, Option(
        "new .csv file with a row for each picture: its key, the class, a column for each "
        "probability or value, and the reason if there is no prediction. The same command goes on "
        "after a kill", place=storage.place, metavar="FILE")] = None
    json: Annotated[bool, Option("prints one JSON array instead of a table")] = False
    batch_size: Annotated[int, Option("number of pictures per batch", least=1)] = 32
    top: Annotated[int | None, Option(
        "number of classes shown per file (default: 3). For a model of several labels: shows the N "
        "most probable labels, also below 0.5", least=1)] = None
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("image_path", "key_column"):
            if self.input is None:
                refuse_idle(self, name, "without a table", Arg("input", "FILE.csv"))
        for name in ("split", "records_root"):
            if self.data is None:
                refuse_idle(self, name, "without " + Arg("data"), Arg("data", "DIR"))
        if self.output is None:
            for name in ("input", "data"):
                refuse_idle(self, name, "without " + Arg("output"), Arg("output", "FILE.csv"))
        else:
            for name in ("json", "top"):
                refuse_idle(self, name, "with " + Arg("output"), "no " + Arg("output"))


def make_parser() -> Parser:
    """Returns the parser of `imageshards predict`."""
    parser = Parser(
        prog=PROGRAM,
        description="Predicts the classes, labels or values of pictures.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=functools.partial(storage.place, "FILE"),
        metavar="FILE",
        help="image file or folder: local, gs:// or s3://. A folder means all its files with the "
        f"endings {', '.join(EXTENSIONS)}",
    )
    add_options(parser, ModelOptions)
    add_options(parser, _Options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `imageshards predict`; returns its exit code, 1 if a file could not be read."""
    return run(PROGRAM, lambda: _run(make_parser().parse_args(argv)), prints_result=True)


def _run(args: argparse.Namespace) -> int:
    asked = vars(args)
    path, files = asked.pop("model_path"), asked.pop("files")
    model = {name: asked.pop(name) for name in ("last", "code", "trust") if name in asked}
    options = _Options(**asked)
    named = [one for one in (*files[:1], options.input, options.data) if one is not None]
    if len(named) != 1:
        raise UserError(
            argument="FILE",
            received=" and ".join(map(repr, named)) or "nothing",
            expected="files, or else " + Arg("input") + ", or else " + Arg("data"),
        )
    saved = _find_model(path, options, **model)
    if options.output is not None:
        return _write(saved, options, files)
    files = find_files(files)
    if saved.file != path:
        # Standard output is the table or the JSON array alone.
        print(f"model    {chosen(path, saved.file, saved.card.step)}", file=sys.stderr)
    found = _predicted(saved, files, options)
    if options.json:
        rows = [_row(*one) for one in found]
        print(json.dumps(rows, indent=1))
        return EXIT_BROKEN_FILES if any("error" in row for row in rows) else 0
    # A row is printed as soon as its batch is predicted, so the width comes from the names alone.
    width, total, broken = max(map(len, files)), 0, 0
    for row, (_, line) in found:
        total += 1
        broken += bool(row.error)
        shown = f"error: {row.error}" if row.error else line
        print(f"{row.key:<{min(width, 80)}}   {shown}", flush=True)
    if broken:
        print(
            f"{PROGRAM}: {broken:,} of {counted(total, 'file')} could not be read.", file=sys.stderr
        )
    return EXIT_BROKEN_FILES if broken else 0


def _write(saved: SavedModel, options: _Options, files: Sequence[str]) -> int:
    """Writes the rows of `--output`; returns the exit code."""
    from trainer.serving import prediction_file

    output, card = str(options.output), saved.card
    prediction_file.check_new(output)
    if options.data is not None:
        pictures = pictures_of_split(card, options.data, options.records_root, options.split)
    elif options.input is not None:
        pictures = pictures_of_input(options.input, options.image_path, options.key_column)
    else:
        pictures = pictures_of_files(find_files(files))
    predictor = _make_predictor(saved, pictures, find_transform(saved.file))

    def rows_from(start: int) -> Iterator[Sequence[str]]:
        for one in predictor.predict(options.batch_size, start):
            yield prediction_file.cells_of(card, one.key, one.found, one.error)

    digest = storage.sha256_of(saved.file)[1]
    made_of = {"model": digest, "input": pictures.identity, "batch_size": options.batch_size}
    header, total = prediction_file.columns_of(card, pictures.key_name), len(pictures.keys)
    broken = prediction_file.write_predictions(output, header, made_of, total, rows_from)
    print(f"model    {saved.file}, step {card.step}")
    print(f"written  {output}: {counted(total, 'row')}, {broken:,} without a prediction")
    return EXIT_BROKEN_FILES if broken else 0


@names_arguments(**ARGUMENTS, FILE="files")
@callers_settings()
def predict(
    model: str | os.PathLike[str],
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    batch_size: int = 32,
    top: int | None = None,
    last: bool = False,
    code: str | None = None,
    trust: bool = False,
) -> list[dict[str, Any]]:
    """Says what a saved model finds in image files, as `imageshards predict` does.

        for row in ims.predict("model/", ["photos/", "cat.jpg"], top=1):
            print(row["file"], row.get("error") or row["class"])

    Files are prepared like the pictures of the training data.

    Args:
        model: Output folder of `imageshards train`, or a `.keras` file in it, local, `gs://` or
            `s3://`.
        files: One or several paths of image files, or of folders with image files; local, `gs://`
            or `s3://`.
        batch_size: Number of files that are predicted together.
        top: Number of classes for each file, None for 3; of labels also less probable ones.
        last: Takes a folder's model after the last step, not the one with the lowest val_loss.
        code: `module:function` from the training, if the model needs your code.
        trust: Runs any code that the model's file names or contains.

    Returns:
        The list that the command prints with `--json`: a dictionary for each file, in order. It has
        `file`, and `error` if the file could not be read. Otherwise it has `class`, `class_id`,
        `probability` and `top` for classes; `labels` and `top` for labels; `values` for values.

    Raises:
        UserError: The model or a folder does not exist, the model needs more inputs, or an
            argument is wrong.
    """
    options = _Options(batch_size=batch_size, top=top)
    saved = _find_model(model, options, last=last, code=code, trust=trust)
    if isinstance(files, str | os.PathLike) or not isinstance(files, Iterable):
        files = [files]
    found = find_files([storage.place("FILE", path) for path in files])
    return [_row(*one) for one in _predicted(saved, found, options)]


def _find_model(path: str | os.PathLike[str], options: _Options, **model: Any) -> SavedModel:
    saved = find_model(path, **model)
    if options.top is not None and saved.card.target == "values":
        why = f"{options.top} for a model of numbers, which has no classes to rank"
        raise UserError(argument="top", received=why, expected="no " + Arg("top"))
    return saved


def _make_predictor(
    saved: SavedModel, pictures: Pictures, transform: str | None = None
) -> Predictor:
    # Keras is imported after all arguments are checked, as the import takes seconds.
    with quiet_import():
        from trainer.serving.predictor import Predictor

        return Predictor(saved.load_for_serving(), saved.card, pictures, transform)


def _predicted(
    saved: SavedModel, files: Sequence[str], options: _Options
) -> Iterator[tuple[Prediction, Shown]]:
    """Yields the prediction of each file, as an object and as fields and text."""
    show = SHOWN[saved.card.target]
    for row in _make_predictor(saved, pictures_of_files(files)).predict(options.batch_size):
        yield row, ({}, "") if row.error else show(row.found, saved.card, options.top)


def top(shares: Sequence[float], card: ModelCard, count: int) -> list[dict[str, Any]]:
    """Returns the `count` most probable classes of a picture, best first."""
    # Equally probable classes keep the order of their ids.
    order = sorted(range(len(shares)), key=lambda i: (-shares[i], i))[:count]
    return [{"class": card.classes[i], "class_id": i, "probability": shares[i]} for i in order]


def _classes(found: Sequence[float], card: ModelCard, count: int | None) -> Shown:
    best = top(found, card, count or TOP)
    return {**best[0], "top": best}, _line(best)


def _labels(found: Sequence[float], card: ModelCard, count: int | None) -> Shown:
    # A label counts as found from a probability of 0.5 on, the threshold of the figures, too.
    number = sum(1 for share in found if share >= 0.5)
    best = top(found, card, max(count or TOP, number))
    names = [one["class"] for one in best[:number]]
    return {"labels": names, "top": best}, _line(best[: max(count or 0, number)]) or "no label"


def _values(found: Sequence[float], card: ModelCard, _: int | None) -> Shown:
    values = found if card.target_shape else found[0]
    named = zip(card.names, found, strict=True)
    line = "   ".join(f"{name} {value:.7g}" for name, value in named)
    return {"values": {card.label_feature: values}}, line


def _line(best: Sequence[Mapping[str, Any]]) -> str:
    return "   ".join(f"{one['class']} {one['probability']:.4f}" for one in best)


# Formats the prediction of each kind of target.
SHOWN = {"class": _classes, "labels": _labels, "values": _values}


def _row(row: Prediction, shown: Shown) -> dict[str, Any]:
    return {"file": printable(row.key)} | ({"error": row.error} if row.error else shown[0])


if __name__ == "__main__":
    sys.exit(main())
