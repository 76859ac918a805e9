"""Evaluates a trained model on one split, exactly: `imageshards evaluate`."""

from __future__ import annotations

import argparse
import dataclasses
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
from trainer.commands import console
from trainer.commands.flags import read_config
from trainer.commands.saved_model import add_model_flags, chosen, find_model
from trainer.config import ReadConfig, RunConfig
from trainer.dataset.manifest import check_shards, find_split, validation_split
from trainer.dataset.open import model_inputs, open_dataset, read_options, select
from trainer.dataset.spec import DataSet, Split, Subset
from trainer.dataset.subset import class_ids
from trainer.evaluation.per_class import figures_of, finite, mean_recall, worst
from trainer.imports import quiet_import
from trainer.reader.batches import EvaluationData
from trainer.reader.broken_records import BrokenRecordHandler
from trainer.serving import model_file

if TYPE_CHECKING:
    from trainer.evaluation.evaluator import Evaluation

PROGRAM = "imageshards evaluate"
WORST_CLASSES = 10

_EPILOG = (
    "The JSON object: num_examples, loss (mean cross-entropy), accuracy, top5_accuracy (null for "
    "five classes or fewer), mean_class_accuracy (every class counts alike), left_out (broken "
    "records), model, step, data, split, classes, batch_size, replicas, eval_crop, seconds. Every "
    "example counts exactly once for any --batch_size and --replicas. A model that was "
    "compiled when it was trained gives its own loss and metrics in place of these."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, as `console.run` does."""
    return console.run(PROGRAM, lambda: _evaluate(make_parser().parse_args(argv)))


def make_parser() -> Parser:
    """The parser of `imageshards evaluate`."""
    parser = Parser(
        prog=PROGRAM,
        description="Evaluates a trained model on one split.",
        epilog=_EPILOG,
    )
    add_model_flags(parser)
    add_options(parser, ReadConfig, ["data"])
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
        "--report", metavar="DIR", help="also writes an HTML report there, local, gs:// or s3://"
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
    dataset = open_dataset(config)
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
    broken = BrokenRecordHandler(config.skip_broken, None, config.data)
    _measure(args, path, data, devices, broken)
    return 0


def _measure(
    args: argparse.Namespace,
    path: str,
    data: EvaluationData,
    devices: Any,
    broken: BrokenRecordHandler,
) -> None:
    """Runs the model over the data, and shows what is asked for."""
    from trainer.evaluation.evaluator import Evaluator
    from trainer.report.page import write_report

    with devices.scope():
        model, card = model_file.load_model(path, args.model, args.trust)
    own = card.compiled
    evaluator = Evaluator(model, devices, data, broken, classes=card.classes, own_step=own)
    started_sec = time.perf_counter()
    figures: Mapping[str, float | None] = evaluator.run(show_progress=True)
    evaluation, subset, count = evaluator.evaluation, evaluator.subset, data.num_records
    if evaluation is not None:
        figures, count = _figures(evaluation), evaluation.num_examples
    measured = {"num_examples": count, **{name: finite(one) for name, one in figures.items()}}
    facts = {
        "model": path,
        "step": card.step,
        "data": subset.dataset.data,
        "split": subset.split.name,
        "left_out": sum(1 for found in broken.found if found.record >= 0),
        "batch_size": data.batch_size,
        "replicas": devices.num_replicas_in_sync,
        "eval_crop": data.model_inputs.eval_crop,
        "seconds": round(time.perf_counter() - started_sec, 2),
    }
    if args.json:
        print(json.dumps(measured | facts | {"classes": list(subset.classes)}, allow_nan=False))
    else:
        print(f"model    {chosen(args, path, card)}")
        print(f"data     {facts['data']}, split {facts['split']}\n")
        print(_text(measured, subset, evaluation))
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


def _figures(evaluation: Evaluation) -> dict[str, float | None]:
    return {
        "loss": evaluation.loss,
        "accuracy": evaluation.accuracy,
        "top5_accuracy": evaluation.top5_accuracy,
        "mean_class_accuracy": mean_recall(figures_of(evaluation)),
    }


def _text(measured: dict[str, Any], subset: Subset, evaluation: Evaluation | None) -> str:
    lines = [
        f"{name:<20} {value if name == 'num_examples' else f'{value:.4f}'}"
        for name, value in measured.items()
        if value is not None
    ]
    if evaluation is None:
        return "\n".join(lines)
    rows = worst(figures_of(evaluation), WORST_CLASSES)
    total = len(subset.classes)
    title = "class" if total <= WORST_CLASSES else f"worst {len(rows)} of {total} classes"
    header = (title, "examples", "recall", "precision", "most often taken for")
    cells = [
        (
            row.name,
            str(row.num_examples),
            _share(row.recall),
            _share(row.precision),
            f"{row.taken_for} ({row.num_taken})" if row.taken_for else "-",
        )
        for row in rows
    ]
    return "\n".join([*lines, "", text_table(header, cells, texts=(0, 4))])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
