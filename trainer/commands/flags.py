"""Turns the flags of `imageshards train` into its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from imageshards.commands.command_line import Parser
from imageshards.commands.options import add_options
from imageshards.errors import Arg, UserError
from trainer.config import OptimizerConfig, ReadConfig, RunConfig, default_output
from trainer.dataset.open import several_datasets

EPILOG = (
    "metrics.jsonl gets one object per epoch: epoch (from 1), step, loss, accuracy (of labels "
    "binary_accuracy and auc_pr, of values mae and rmse), the same of validation as val_loss, "
    "val_accuracy …, images_per_second, wait_fraction (share of the time the model waited for "
    "data), learning_rate. The loss of values has no unit; mae and rmse have the unit of the "
    "column. E epochs are floor(E * records / batch_size) steps: the records left over open the "
    "next epoch. Validation counts every picture exactly once."
)


def make_parser() -> Parser:
    """Returns the parser of `imageshards train`."""
    parser = Parser(
        prog="imageshards train",
        description="Trains a model of images from balanced TFRecord shards.",
        epilog=EPILOG,
    )
    add_options(parser, ReadConfig, title="data")
    add_options(parser, RunConfig, title="training")
    add_options(parser, OptimizerConfig, title="optimizer")
    return parser


def parse_config(argv: Sequence[str] | None) -> RunConfig:
    """Returns the configuration of a command line; refuses unknown flags and wrong values."""
    # argparse leaves out the flags that were not given: the dataclasses have the defaults.
    given = vars(make_parser().parse_args(argv))
    if "steps" in given and "epochs" in given:
        raise UserError(
            argument="steps",
            received=f"{given['steps']} together with " + Arg("epochs", given["epochs"]),
            expected="one of them, as each says how long to train",
        )
    data, *more = given["data"]
    if more:
        raise several_datasets(given["data"])
    return RunConfig(
        ReadConfig(data, **_pick(given, ReadConfig, {"data"})),
        given.get("output") or default_output(data),
        OptimizerConfig(**_pick(given, OptimizerConfig)),
        # --optimizer is a field of `OptimizerConfig`, which is the field of this name here.
        **_pick(given, RunConfig, {"output", "optimizer"}),
    )


def _pick(given: Mapping[str, Any], kind: type, without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the values of `given` that are fields of the dataclass `kind`."""
    names = {field.name for field in dataclasses.fields(kind)} - set(without)
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in names
    }
