"""Command line → configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.commands.flags import make_parser
from trainer.config import (
    DataConfig,
    OptimizerConfig,
    TrainConfig,
    default_output,
    parse_image_size,
)


def parse_config(argv: Sequence[str] | None) -> TrainConfig:
    """Command line → configuration.

    Raises:
        UserError: A flag is unknown, or has a value it does not take.
    """
    given = vars(make_parser().parse(argv))
    return train_config(given)


def train_config(given: Mapping[str, Any]) -> TrainConfig:
    """Flags as argparse returns them → configuration.

    Raises:
        UserError: A flag has a value it does not take.
    """
    if "steps" in given and "epochs" in given:
        raise UserError(
            f"--steps received {given['steps']} together with --epochs {given['epochs']}; "
            "expected one of them: each says how long to train."
        )
    data = data_config(given)
    return TrainConfig(
        data=data,
        output=given.get("output") or default_output(data.data),
        optimizer=OptimizerConfig(**_pick(given, OptimizerConfig)),
        **_pick(given, TrainConfig, {"data", "output", "optimizer"}),
    )


def data_config(given: Mapping[str, Any]) -> DataConfig:
    """The part of the flags that says which records are read.

    Raises:
        UserError: A flag has a value it does not take.
    """
    values = _pick(given, DataConfig)
    if "image_size" in values:
        values["image_size"] = parse_image_size(values["image_size"])
    for name in ("classes", "inputs"):
        if name in values:
            values[name] = _names(values[name])
    if "class_names" in values:
        values["class_names"] = _names_or_file(values["class_names"])
    if "where" in values:
        values["where"] = tuple(values["where"])
    if "feature_map" in values:
        values["feature_map"] = _feature_map(values["feature_map"])
    return DataConfig(**values)


def _pick(given: Mapping[str, Any], kind: Any, without: Collection[str] = ()) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)} - set(without)
    return {name: value for name, value in given.items() if name in names}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _names_or_file(text: str) -> tuple[str, ...]:
    if not os.path.isfile(text):
        return _names(text)
    try:
        with open(text, encoding="utf-8") as f:
            return tuple(line.rstrip("\n") for line in f if line.strip())
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(
            f"--class_names received {text!r}, which cannot be read ({e}); expected a text file "
            "with one name per line."
        ) from e


def _feature_map(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in _names(text)]
    if not pairs or not all(key.strip() and value.strip() for key, _, value in pairs):
        raise UserError(
            f"--feature_map received {text!r}; expected NAME=FEATURE pairs, for example "
            "image=image_raw,label=class."
        )
    return {key.strip(): value.strip() for key, _, value in pairs}
