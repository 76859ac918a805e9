"""Evaluates a trained model on one split, exactly: `imageshards evaluate`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.commands.command_line import Parser
from imageshards.commands.options import add_options, check_option
from imageshards.errors import UserError
from imageshards.manifest import PAGE_NAME
from imageshards.output_folder import check_page_folder
from imageshards.progress import text_table
from imageshards.text import counted
from trainer.commands import console
from trainer.commands.flags import read_config
from trainer.commands.saved_model import add_model_flags, chosen, find_model
from trainer.config import ReadConfig, RunConfig
from trainer.dataset.manifest import check_shards, find_split, validation_split
from trainer.dataset.open import model_inputs, open_dataset, read_options
from trainer.dataset.spec import DataSet, Split
from trainer.dataset.subset import class_ids, select
from trainer.dataset.target import with_target_of
from trainer.evaluation.evaluation import finite, plain
from trainer.imports import quiet_import
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecords
from trainer.serving import model_file

if TYPE_CHECKING:
    from trainer.evaluation.evaluation import Evaluation

PROGRAM = "imageshards evaluate"
MAX_ROWS = 10

_EPILOG = (
    "The JSON object: num_examples, loss (that of the training); for one class accuracy, "
    "top5_accuracy (null for five classes or fewer), mean_class_accuracy (every class counts "
    "alike); for labels mean_average_precision; for values mse and mae (mean squared and absolute "
    "error), rmse, r2 (null where a value is always the same). Then left_out (broken records), "
    "model, step, data, split, batch_size, replicas, eval_crop, seconds, classes, target (class, "
    "labels or values), outputs: the figures of each class, label (predicted from a probability of "
    "0.5) or value, and estimate: a sentence where figures are estimates, else null. Average "
    "precisions are estimates where records times labels are more than 33,554,432. "
    "Every example counts exactly once for any --batch_size and --replicas. A model that was "
    "compiled when it was trained gives its own loss and metrics in place of these."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, as `console.run` does."""
    return console.run(
        PROGRAM, lambda: _evaluate(make_parser().parse_args(argv)), prints_result=True
    )


def make_parser() -> Parser:
    """The parser of `imageshards evaluate`."""
    parser = Parser(
        prog=PROGRAM,
        description="Evaluates a trained model on one split.",
        epilog=_EPILOG,
    )
    add_model_flags(parser)
    add_options(parser, ReadConfig, ["data", "records_root"])
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="split to evaluate on; validation, val and valid mean the one that is there (default: "
        "validation, val, valid or test, where there is one)",
    )
    add_options(parser, ReadConfig, ["batch_size"])
    add_options(parser, RunConfig, ["replicas"])
    parser.add_argument(
        "--eval_crop",
        type=float,
        default=argparse.SUPPRESS,
        metavar="X",
        help="share of each side that is kept around the centre (default: that of training)",
    )
    names = ["classes", "where", "skip_broken", "threads"]
    add_options(parser, ReadConfig, names)
    parser.add_argument("--json", action="store_true", help="prints one JSON object instead")
    parser.add_argument(
        "--report",
        type=functools.partial(storage.place, "--report"),
        metavar="DIR",
        help="also writes an HTML report there, local, gs:// or s3://",
    )
    return parser


def _evaluate(args: argparse.Namespace) -> int:
    config = read_config(vars(args))
    replicas = getattr(args, "replicas", None)
    if replicas is not None:
        check_option(RunConfig, "replicas", replicas)
    if args.report:
        storage.check_bucket(args.report, "--report")
        check_page_folder("--report", args.report, PAGE_NAME)
    path, card = find_model(args)
    dataset = with_target_of(open_dataset(config), card)
    split = _split(dataset, args.split)
    if not config.skip_broken:
        check_shards(dataset, [split])
    subset = select(config, dataset, split)
    # Before TensorFlow's import, which takes seconds, so that mistakes are reported at once.
    class_ids(subset, card.classes)
    inputs = model_inputs(dataset, card)
    if "eval_crop" in args:
        inputs = dataclasses.replace(inputs, eval_crop=config.eval_crop)
    data = EvaluationData(subset, read_options(config), inputs, config.batch_size)
    with quiet_import():
        from trainer.models.strategy import make_strategy

    devices = make_strategy(replicas, config.batch_size)
    broken = BrokenRecords(config.skip_broken, dataset)
    _measure(args, path, data, devices, broken)
    return 0


def _measure(
    args: argparse.Namespace,
    path: str,
    data: EvaluationData,
    devices: Any,
    broken: BrokenRecords,
) -> None:
    """Runs the model over the data, and shows what is asked for."""
    from trainer.evaluation.evaluator import Evaluator
    from trainer.report.page import write_report

    with devices.scope():
        model, card = model_file.load_model(path, args.model, args.trust)
    options = {"loss": card.training.get("optimizer", {}).get("loss"), "own_step": card.compiled}
    evaluator = Evaluator(model, devices, data, broken, classes=card.classes, **options)
    started_sec = time.perf_counter()
    figures: Mapping[str, float] = evaluator.run(show_progress=True)
    evaluation, subset, count = evaluator.evaluation, evaluator.subset, data.num_records
    if evaluation is not None:
        figures, count = evaluation.figures(), evaluation.num_examples
    measured = {"num_examples": count, **{name: finite(one) for name, one in figures.items()}}
    facts = {
        "model": path,
        "step": card.step,
        "data": subset.dataset.data,
        "split": subset.split.name,
        "left_out": len(broken.found),
        "batch_size": data.batch_size,
        "replicas": devices.num_replicas_in_sync,
        "eval_crop": data.model_inputs.eval_crop,
        "seconds": round(time.perf_counter() - started_sec, 2),
    }
    if args.json:
        more = {
            "target": card.target,
            "outputs": _outputs(evaluation),
            "estimate": evaluation.estimate if evaluation else None,
        }
        known = {**measured, **facts, "classes": list(subset.classes), **more}
        print(json.dumps(known, allow_nan=False))
    else:
        print(f"model    {chosen(args, path, card)}")
        print(f"data     {facts['data']}, split {facts['split']}\n")
        print(_text(measured, evaluation))
    # Only the object goes to stdout with --json.
    out = sys.stderr if args.json else sys.stdout
    for found in broken.found:
        print(f"left out {found}", file=out)
    if args.report:
        shown = {name: str(value) for name, value in facts.items()}
        title = f"{path} on {facts['data']}"
        page = write_report(
            args.report, title=title, facts=shown, history=[], evaluation=evaluation, subset=subset
        )
        print(f"report   {page}", file=out)


def _split(dataset: DataSet, name: str | None) -> Split:
    if name:
        split: Split | None = find_split(dataset, "--split", name)
    else:
        split = validation_split(dataset, None) or dataset.splits.get("test")
    if split is None:
        raise UserError(
            f"--data received {dataset.data!r}, which has no split to validate on; expected the "
            f"one to evaluate on by --split: {', '.join(dataset.splits)}."
        )
    if not split.num_records:
        raise UserError(f"--split received {split.name!r}, which has no records.")
    return split


def _outputs(evaluation: Evaluation | None) -> list[dict[str, Any]]:
    """The figures of single outputs as JSON values."""
    if evaluation is None:
        return []
    _, head, rows = evaluation.table()
    names = [name.replace(" ", "_") for name in head]
    return [dict(zip(names, map(plain, row), strict=True)) for row in rows]


def _text(measured: dict[str, Any], evaluation: Evaluation | None) -> str:
    width = max(20, *map(len, measured))
    lines = [
        f"{name:<{width}} {_cell(value)}" for name, value in measured.items() if value is not None
    ]
    if evaluation is None:
        return "\n".join(lines)
    order, (noun, *head), rows = evaluation.table()
    texts = {i for row in rows for i, cell in enumerate(row) if isinstance(cell, str)}
    if len(rows) > MAX_ROWS:
        noun = f"{order} {MAX_ROWS} of {counted(len(rows), noun)}"
    cells = [[_cell(plain(cell)) for cell in row] for row in rows[:MAX_ROWS]]
    said = [evaluation.estimate] if evaluation.estimate else []
    return "\n".join([*lines, *said, "", text_table((noun, *head), cells, texts=texts)])


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
