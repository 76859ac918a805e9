"""Evaluates a trained model on one split, each record exactly once: `imageshards evaluate`."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from imageshards import storage
from imageshards.commands.command_line import Parser
from imageshards.commands.options import Option, add_options, check_option
from imageshards.commands.output_folder import check_page_folder, write_page
from imageshards.errors import Arg, UserError, names_arguments
from imageshards.manifest import PAGE_NAME
from imageshards.progress import text_table
from imageshards.text import counted
from trainer.api import Data, splits_text, with_arguments
from trainer.commands import (
    ARGUMENTS,
    ModelOptions,
    chosen,
    run,
)
from trainer.config import OptimizerConfig, ReadConfig, RunConfig, refuse_uneven
from trainer.dataset.manifest import load_manifest
from trainer.dataset.open import several_datasets
from trainer.dataset.spec import ModelCard
from trainer.dataset.subset import class_ids
from trainer.evaluation.data import check_fits, data_of_model
from trainer.evaluation.evaluation import Evaluation, finite, plain
from trainer.imports import callers_settings, quiet_import
from trainer.reader.broken_records import BrokenRecord, BrokenRecords
from trainer.reader.described import EvaluationData
from trainer.serving.model_file import SavedModel, find_model

if TYPE_CHECKING:
    import keras

PROGRAM = "imageshards evaluate"
MAX_ROWS = 10
_EPILOG = (
    "The JSON object contains num_examples and loss (as in training). A class adds accuracy, "
    "top5_accuracy (null for five classes or fewer) and mean_class_accuracy (the mean over "
    "classes). Several labels add mean_average_precision. Regression adds mse, mae and rmse (mae "
    "and rmse have the unit of the column), and r2 (null if all values are equal); its loss has "
    "no unit. A model that you compiled gives its own loss and metrics instead. Further keys: "
    "left_out (number of broken records), missing_target (number of skipped records without a "
    "target), model, step, data, split, batch_size, replicas, eval_crop, seconds, classes, target "
    "(class, labels or values), outputs (figures of each class, label or value; a label is "
    "predicted from a probability of 0.5), and estimate (a sentence if figures are estimates, "
    "else null). Every record counts exactly once for any --batch_size and --replicas; above "
    "67,108,864 records times labels or values, every n-th record is measured."
)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command that the training has not, or with another default."""

    # fmt: off
    split: Annotated[str | None, Option(
        "split to evaluate on, or several as one: fold1,fold2; validation, val and valid are "
        "synonyms (default: the first of validation, val, valid and test that the dataset has)",
        metavar="A,B")] = None
    eval_crop: Annotated[float | None, Option(
        "share of each side that a centre crop keeps (default: as in training)")] = None
    json: Annotated[bool, Option("prints one JSON object instead of tables")] = False
    report: Annotated[str | None, Option(
        "also writes an HTML report to DIR: a local folder, gs:// or s3:// place",
        place=storage.place, metavar="DIR")] = None
    # fmt: on


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `imageshards evaluate`; returns its exit code, as `commands.run` does."""
    return run(PROGRAM, lambda: _run(make_parser().parse_args(argv)), prints_result=True)


def make_parser() -> Parser:
    """Returns the parser of `imageshards evaluate`."""
    description = "Evaluates a trained model on one split."
    parser = Parser(prog=PROGRAM, description=description, epilog=_EPILOG)
    add_options(parser, ModelOptions)
    add_options(parser, ReadConfig, ["data", "records_root"])
    add_options(parser, _Options, ["split"])
    add_options(parser, ReadConfig, ["batch_size"])
    add_options(parser, RunConfig, ["replicas"])
    add_options(parser, _Options, ["eval_crop"])
    add_options(parser, ReadConfig, ["classes", "where", "skip_broken", "threads"])
    add_options(parser, _Options, ["json", "report"])
    return parser


def _run(args: argparse.Namespace) -> int:
    # argparse leaves out the flags that were not given.
    asked = vars(args)
    path, (data, *more), prints_json = asked.pop("model_path"), asked.pop("data"), "json" in asked
    if more:
        raise several_datasets([data, *more])
    asked.pop("json", None)
    found = evaluate(path, data, **asked)
    if prints_json:
        print(json.dumps(found, allow_nan=False))
    else:
        print(f"model    {chosen(path, found['model'], found['step'])}")
        print(f"data     {found['data']}, split {found['split']}")
        if missing := found["missing_target"]:
            print(f"missing  {counted(missing, 'record')} without a target left out")
        print(f"\n{_text(found)}")
    # With --json, stdout has the JSON object alone.
    out = sys.stderr if prints_json else sys.stdout
    for one in found.broken:
        print(f"left out {one}", file=out)
    if report := asked.get("report"):
        print(f"report   {storage.join(report, PAGE_NAME)}", file=out)
    return 0


class Figures(dict[str, Any]):
    """The figures of an evaluation by name.

    Attributes:
        broken: The damaged records that were left out; `str` of a record says where it is.
    """

    broken: Sequence[BrokenRecord] = ()


@names_arguments(**ARGUMENTS)
@callers_settings()
def evaluate(
    model: str | os.PathLike[str] | keras.Model,
    data: str | os.PathLike[str] | Data | EvaluationData,
    *,
    split: str | Sequence[str] | None = None,
    batch_size: int | None = None,
    eval_crop: float | None = None,
    classes: Sequence[str] | None = None,
    where: Sequence[str] = (),
    skip_broken: int | None = None,
    threads: int | None = None,
    replicas: int | None = None,
    records_root: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    last: bool = False,
    code: str | None = None,
    trust: bool = False,
) -> Figures:
    """Evaluates a model on one split, each record once, as `imageshards evaluate` does.

        figures = ims.evaluate("model/", "shards/", split="test")
        print(figures["accuracy"], figures["outputs"][0])

        val = ims.open("shards/").evaluation(batch_size=256, image_size=224)
        model.compile(loss="sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        print(ims.evaluate(model, val)["accuracy"])

    A saved model gets the figures of the command. A compiled `keras.Model` gets its own: its
    `test_step`, loss and metrics run in the strategy in which the model was made.

    Args:
        model: Output folder of `imageshards train`, or a `.keras` file in it, local, `gs://` or
            `s3://`. Or a compiled `keras.Model`, which allows `skip_broken` as the only option.
        data: Folder of a dataset; the result of `ims.open`; or the result of `Data.evaluation`,
            which allows only `skip_broken` of the options from `split` to `threads`. A
            `keras.Model` needs the result of `Data.evaluation`.
        split: Name of a split, or several in a list; None for the first of validation, val, valid
            and test.
        batch_size: Global batch size, summed over all replicas; None for 32.
        eval_crop: Share of each side that is kept around the centre; None for that of training.
        classes: Names of the classes to read; None for all.
        where: Conditions like `image/width>=128`; a record must pass all of them.
        skip_broken: Number of damaged records that may be left out; None for the number that
            `ims.open` received, or 0.
        threads: Threads of the reader; None for one per core.
        replicas: Number of GPUs, or of logical CPU devices without GPUs, that share each batch.
            None for the strategy of the scope or, on GPUs, the last one used; else all GPUs, or 1.
        records_root: Folder, or place in a store, below which shards of an adopted dataset may also
            lie; only if `data` is a folder.
        report: Folder that receives an HTML report.
        last: Takes a folder's model after the last step, not the one with the lowest val_loss.
        code: `module:function` from the training, if the model needs your code.
        trust: Runs any code that the model's file names or contains.

    Returns:
        The dictionary that the command prints with `--json`, described in its `--help`; for a
        `keras.Model`, its loss and metrics by name. The attribute `broken` lists the damaged
        records that were left out.

    Raises:
        UserError: The model or dataset does not exist, both do not fit, an argument is wrong, or
            records are damaged.
    """
    # Arguments are refused beside others only if the caller gave them, so defaults are left out.
    given = _given(
        split=splits_text(split), batch_size=batch_size, eval_crop=eval_crop, classes=classes,
        where=where or None, threads=threads, records_root=records_root,
    )  # fmt: skip
    if not isinstance(model, str | os.PathLike):
        given |= _given(replicas=replicas, report=report, last=last, code=code, trust=trust)
        return _evaluate_compiled(model, data, given, skip_broken)
    if replicas is not None:
        check_option(RunConfig, "replicas", replicas)
    page = None if report is None else storage.place("report", report)
    if page is not None:
        storage.check_bucket(page, "report")
        check_page_folder("report", page)
    saved = find_model(model, last, code, trust)
    described, broken = _described(saved.card, data, given, skip_broken)
    # Classes are checked before TensorFlow's import, which takes seconds: mistakes show first.
    class_ids(described.subset, saved.card.classes)
    return _measured(saved, described, broken, replicas, page)


def _described(
    card: ModelCard,
    data: str | os.PathLike[str] | Data | EvaluationData,
    given: dict[str, Any],
    skip_broken: int | None,
) -> tuple[EvaluationData, BrokenRecords]:
    """Returns the pass over `data` for a saved model, and the counter of its damaged records."""
    if isinstance(data, EvaluationData):
        _refuse(given, "an EvaluationData, which was made with all of these")
        check_fits(data, card)
        return data, _counter(data, skip_broken)
    split, given = given.pop("split", None), given | _given(skip_broken=skip_broken)
    if isinstance(data, Data):
        own = {name: one for name, one in given.items() if name == "records_root"}
        _refuse(own, "data that is open, and was given it by ims.open")
        config, dataset = with_arguments(data.config, **given), data.dataset
    else:
        config = with_arguments(ReadConfig(storage.place("data", data)), **given)
        dataset = load_manifest(config.data, config.records_root)
    described = data_of_model(card, config, dataset, split, "eval_crop" in given)
    return described, _counter(described, config.skip_broken)


def _counter(data: EvaluationData, skip_broken: int | None) -> BrokenRecords:
    check_option(ReadConfig, "skip_broken", skip_broken or 0)
    return BrokenRecords(skip_broken or 0, data.subset.dataset)


def _given(**arguments: Any) -> dict[str, Any]:
    """Returns the arguments that differ from their default, None or False."""
    return {name: one for name, one in arguments.items() if one is not None and one is not False}


def _refuse(given: Mapping[str, object], together: str) -> None:
    for name, value in given.items():
        raise UserError(
            argument=name,
            received=f"{value!r} together with {together}",
            remedy="leave " + Arg(name) + " out",
        )


def _measured(
    saved: SavedModel,
    data: EvaluationData,
    broken: BrokenRecords,
    replicas: int | None,
    page: str | None,
) -> Figures:
    """Runs a saved model over the data, and writes the report if `page` names one."""
    with quiet_import():
        from trainer.models.strategy import shared_strategy

    from trainer.evaluation.evaluator import Evaluator, measure
    from trainer.models.optimizer import make_loss
    from trainer.reader.stream import EvaluationStream
    from trainer.report.page import page_of, target_fact

    card, subset, count = saved.card, data.subset, data.num_records
    devices = shared_strategy(replicas, data.batch_size)
    with devices.scope():
        model = saved.load()
    started_sec, evaluation = time.perf_counter(), None
    if card.compiled:
        figures = Evaluator(model, devices, data, broken).run(show_progress=True)
    else:
        loss = make_loss(_loss_of(card), card.target, card.num_outputs, card.target_mean_std)
        stream = EvaluationStream(data, devices, broken)
        evaluation = measure(model, devices, stream, loss, card.classes)
        figures, count = evaluation.figures(), evaluation.num_examples
    facts = {
        "model": saved.file,
        "step": card.step,
        "data": subset.dataset.data,
        "split": subset.split.name,
        "left_out": len(broken.found),
        "missing_target": subset.missing_target,
        "batch_size": data.batch_size,
        "replicas": devices.num_replicas_in_sync,
        "eval_crop": data.model_inputs.eval_crop,
        "seconds": round(time.perf_counter() - started_sec, 2),
    }
    if page is not None:
        shown = {name: str(value) for name, value in facts.items()}
        shown |= target_fact(card, card.target_mean_std)
        title = f"{saved.file} on {facts['data']}"
        write_page(page, page_of(title, shown, [], evaluation, subset), "report")
    found = Figures({"num_examples": count} | {name: finite(one) for name, one in figures.items()})
    found |= facts | {"classes": list(subset.classes), "target": card.target} | _outputs(evaluation)
    found.broken = broken.found
    return found


def _outputs(evaluation: Evaluation | None) -> dict[str, Any]:
    """Returns the figures of each output of the model; none for a model that the user compiled."""
    if evaluation is None:
        return {"outputs": [], "estimate": None}
    _, head, rows = evaluation.table()
    names = [name.replace(" ", "_") for name in head]
    outputs = [dict(zip(names, map(plain, row), strict=True)) for row in rows]
    return {"outputs": outputs, "estimate": evaluation.estimate}


def _loss_of(card: ModelCard) -> OptimizerConfig:
    """Returns the options of the training that decide the loss."""
    given = card.training.get("optimizer", {})
    names = {"loss", "label_smoothing"} & given.keys()
    return OptimizerConfig(**{name: given[name] for name in names})


def _evaluate_compiled(
    model: keras.Model,
    data: str | os.PathLike[str] | Data | EvaluationData,
    given: Mapping[str, Any],
    skip_broken: int | None,
) -> Figures:
    """Measures a compiled model by its own step, loss and metrics."""
    # A caller with a model has loaded Keras; importing it for a wrong argument would take seconds.
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Model):
        raise UserError(
            argument="model_path",
            received=type(model).__name__,
            expected="the path of a saved model, or a compiled keras.Model of Keras 3",
        )
    from trainer.evaluation.evaluator import Evaluator
    from trainer.models.step import build_variables
    from trainer.training.fit import check_model

    check_model(model, "model_path")
    _refuse(given, "a keras.Model")
    if not isinstance(data, EvaluationData):
        raise UserError(
            argument="data",
            received=f"{type(data).__name__} together with a keras.Model",
            expected="what ims.open(…).evaluation(…) returns",
        )
    strategy, broken = model.distribute_strategy, _counter(data, skip_broken)
    refuse_uneven(data.batch_size, strategy.num_replicas_in_sync)
    build_variables(model, strategy, data.dataset().element_spec, weighs=data.weighs)
    found = Figures(Evaluator(model, strategy, data, broken).run(show_progress=True))
    found.broken = broken.found
    return found


def _text(found: Figures) -> str:
    # The figures come before `model`; the facts after it are printed by `_run`.
    measured = [*itertools.takewhile(lambda item: item[0] != "model", found.items())]
    width = max(20, *(len(name) for name, _ in measured))
    lines = [f"{name:<{width}} {_cell(value)}" for name, value in measured if value is not None]
    rows = found["outputs"]
    if not rows:
        return "\n".join(lines)
    noun, *head = (name.replace("_", " ") for name in rows[0])
    texts = {i for row in rows for i, cell in enumerate(row.values()) if isinstance(cell, str)}
    if len(rows) > MAX_ROWS:
        order = "first" if found["target"] == "values" else "worst"
        noun = f"{order} {MAX_ROWS} of {counted(len(rows), noun)}"
    cells = [[_cell(cell) for cell in row.values()] for row in rows[:MAX_ROWS]]
    said = [found["estimate"]] if found["estimate"] else []
    return "\n".join([*lines, *said, "", text_table((noun, *head), cells, texts=texts)])


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
