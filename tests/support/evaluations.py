"""Evaluations of outputs that are given, without a model or a dataset."""

from typing import Any

import numpy as np

from trainer.config import OptimizerConfig
from trainer.evaluation.evaluation import Collector
from trainer.evaluation.kinds import KINDS
from trainer.models.optimizer import make_loss


def evaluation_of(kind, label, outputs, *names, record=None) -> Any:
    """What is measured of examples with these labels and outputs."""
    target = next(name for name, one in KINDS.items() if one is kind)
    label_type = np.int64 if target == "class" else np.float32
    given = np.array(label, label_type), np.array(outputs, np.float32)
    losses = make_loss(OptimizerConfig(), target, given[1].shape[-1]).call(*given)
    measured = {"losses": losses} | kind.measure(given[1], given[0])
    arrays = {name: np.asarray(values) for name, values in measured.items()}
    numbers = np.arange(len(arrays["losses"])) if record is None else np.asarray(record)
    collector = Collector(kind, names, len(numbers))
    collector.add(arrays | {"record": numbers, "weight": np.ones(len(numbers))})
    return collector.evaluation()
