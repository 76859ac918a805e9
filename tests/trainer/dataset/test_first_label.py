"""Data sets whose labels begin at 1: whatever reads them counts classes from 0."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from tests.support.trainer_data import CLASSES, make_data_set
from trainer import evaluate

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.process

COUNTS = {"train": 13, "validation": 7}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """The same pictures with labels from 0 and from 1."""
    root = tmp_path_factory.mktemp("sets")
    return [
        make_data_set(root / str(first), COUNTS, size_px=((16, 16),), first_label=first)
        for first in (0, 1)
    ]


def _epoch(data: ims.Data, **options: Any) -> list[np.ndarray]:
    train = data.train(batch_size=4, image_size=16, seed=3, **options)
    arrays = (part for _, batch in zip(range(3), train.as_numpy(), strict=False) for part in batch)
    return [np.asarray(part) for part in arrays]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"classes": ["triangle", "circle"]},
        {"balance": "sampling"},
        {"augment": "strong", "classes": ["square", "circle"]},
    ],
)
def test_training_reads_the_same_as_with_labels_from_0(folders, options) -> None:
    zero, one = (_epoch(ims.open(folder), **options) for folder in folders)
    for expected, found in zip(zero, one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_evaluation_finds_the_same_figures(folders, tmp_path, capsys) -> None:
    from tests.trainer.test_evaluate import save_model

    model = save_model(tmp_path / "model.keras", CLASSES[::-1])
    figures = []
    for folder in folders:
        assert evaluate.main(["--model_path", model, "--data", str(folder), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        figures.append({name: found[name] for name in ("loss", "accuracy", "num_examples")})
    assert figures[0] == figures[1]
