"""What people import is light, and holds what it says."""

from __future__ import annotations

import builtins
import pathlib
import subprocess
import sys
from typing import assert_type

import pytest

import imageshards as ims
from tests.support.dataset_factory import Dataset

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = ("apache_beam", "tensorflow", "tensorflow_transform", "keras", "beam_pipeline", "trainer")


def loaded_after(code: str) -> set[str]:
    """Top-level packages that some code loads in a fresh interpreter."""
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; old = {{*sys.modules}}\n{code}\n"
         "print(*{*sys.modules} - old)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name.partition(".")[0] for name in told.stdout.split()}


@pytest.mark.process
def test_importing_the_face_loads_nothing_else():
    assert loaded_after("import imageshards") - {*sys.stdlib_module_names} == {"imageshards"}


@pytest.mark.process
def test_reading_and_describing_what_is_trained_on_loads_neither_beam_nor_tensorflow(tmp_path):
    Dataset(tmp_path)
    describe = (
        f"import imageshards as i; d = i.open({str(tmp_path)!r})\n"
        "assert len([*d.source('train')]) == 18\n"
        "t, v = d.train(batch_size=2), d.evaluation(batch_size=2)\n"
        "assert t.steps_per_epoch == 9 and v.steps and t.class_weight and repr(t)"
    )
    assert not loaded_after(describe) & {*HEAVY} - {"trainer"}


@pytest.mark.process
def test_mistakes_of_models_and_data_are_told_before_tensorflow_is_loaded():
    calls = (
        "import imageshards as i\n"
        "for call in (i.evaluate, i.predict, i.export):\n"
        "    try: call('/none/model.keras', '/none/x')\n"
        "    except i.UserError as e: assert str(e).startswith('model received'), e"
    )
    assert not loaded_after(calls) & {*HEAVY} - {"trainer"}


def test_every_name_is_there_and_a_star_shadows_no_builtin():
    assert not {*ims.__all__} & {*dir(builtins)} and callable(ims.open)
    assert {*ims.__all__} <= {*dir(ims)}
    for name in ims.__all__:
        assert getattr(ims, name) is not None, name
    with pytest.raises(AttributeError, match="'imageshards' has no attribute 'absent'"):
        ims.absent  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_know_what_is_opened(tmp_path: pathlib.Path) -> None:
    """What `assert_type` says is held by mypy, in `make lint`."""
    Dataset(tmp_path)
    data = assert_type(ims.open(tmp_path), ims.Data)
    train = assert_type(data.train(batch_size=2, image_size=16), ims.TrainingData)
    val = assert_type(data.evaluation(batch_size=2, image_size=16), ims.EvaluationData)
    assert assert_type(train.steps_per_epoch, int) == 9 and isinstance(val, ims.EvaluationData)
