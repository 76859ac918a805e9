"""The commands on GPUs: `imageshards train`, killed and resumed, and what its models serve."""

import math
import signal
from typing import Any

import numpy as np
import pytest

from tests.support import gpus
from tests.support.commands import kill_at
from tests.support.pictures import saved, scene
from tests.support.runs import digest, metrics

pytestmark = [pytest.mark.gpu, pytest.mark.long, pytest.mark.process, gpus.needs_gpus]

# Everything at once that two replicas can do; the other runs take what is left.
LIGHT = "--augment light --augment_on device --precision float16 --ema 0.9 --sync_batchnorm"
ALL = LIGHT.replace("light", "strong")


def _flags(
    data: object, output: object, *more: object, image_size: int = 12, batch_size: int = 8
) -> list[object]:
    sizes = ["--image_size", image_size, "--batch_size", batch_size]
    small = ["--model", "cnn", "--seed", 3, "--epochs", 2, *sizes]
    return ["--data", data, "--output", output, *small, *more]


def _killed(count: int, step: int, *flags: object) -> None:
    """Runs `imageshards train`, which is killed in its n-th step."""
    given = ("trainer.training.loop", "Loop._train", step)
    killed = gpus.command(
        count, "trainer", *flags, "--replicas", count, before=kill_at, given=given
    ).result()
    assert killed.returncode == -signal.SIGKILL, killed.stderr


@pytest.mark.parametrize(("count", "flags"), [(2, LIGHT), (1, ALL), (2, ALL)])
def test_a_killed_run_ends_up_bit_identical(shapes, tmp_path, count, flags):
    more = ["--deterministic", "--checkpoint_steps", 2, *flags.split()]
    one, killed = (_flags(shapes, tmp_path / folder, *more) for folder in ("one", "killed"))
    gpus.train(count, *one)
    losses = [record["val_loss"] for record in metrics(tmp_path / "one")]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    _killed(count, 4, *killed)
    assert "resumes after step" in gpus.train(count, *killed)
    assert digest(tmp_path / "killed") == digest(tmp_path / "one")


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_a_run_resumes_on_another_number_of_gpus(shapes, tmp_path, first, then):
    more = ["--sync_batchnorm", "--checkpoint_steps", 1, "--augment", "none"]
    gpus.train(1, *_flags(shapes, tmp_path / "one", *more))
    killed = _flags(shapes, tmp_path / "killed", *more)
    _killed(first, 4, *killed)
    assert "resumes after step" in gpus.train(then, *killed)
    for one, other in zip(*(metrics(tmp_path / run) for run in ("one", "killed")), strict=True):
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=0.05)


@pytest.mark.parametrize(
    ("count", "more"),
    [
        (1, "--augment light --augment_on device --accumulate_steps 2 --precision bfloat16"),
        (1, "--augment strong --augment_on host --clipnorm 1"),
        (2, "--augment light --augment_on host --cache pixels --clipnorm 1"),
        (2, "--augment none --metrics top5 --skip_broken 1"),
    ],
)
def test_a_run_ends_with_finite_figures(shapes, tmp_path, count, more):
    gpus.train(count, *_flags(shapes, tmp_path, *more.split()))
    for record in metrics(tmp_path):
        assert all(math.isfinite(record[name]) for name in ("loss", "val_loss", "accuracy"))


def test_a_model_of_a_gpu_says_the_same_without_one(shapes, tmp_path):
    run, served, files = tmp_path / "run", tmp_path / "served", []
    gpus.train(1, *_flags(shapes, run))
    for i in range(4):
        files.append(tmp_path / f"{i}.jpg")
        files[-1].write_bytes(saved(scene(80 + i, 90)))
    evaluated: Any = ["--model_path", run, "--data", shapes, "--batch_size", 4]
    for count in (1, 2):
        assert "num_examples         6" in gpus.run(count, "trainer.evaluate", *evaluated)
    shown = gpus.run(1, "trainer.predict", "--model_path", run, *files)
    assert len(shown.splitlines()) == 4
    gpus.run(1, "trainer.export", "--model_path", run, "--output", served)
    here = gpus.scenario(1, "serve", served, *files)
    there = gpus.scenario(1, "serve", served, *files, CUDA_VISIBLE_DEVICES="")
    np.testing.assert_allclose(here, there, atol=1e-3)


def test_too_little_memory_is_a_sentence_about_the_batch(shapes, tmp_path):
    flags = _flags(shapes, tmp_path / "run", image_size=512, batch_size=16)
    with gpus.little_memory() as environment:
        done = gpus.command(1, "trainer", *flags, environment=environment).result()
        assert done.returncode == 2 and "--batch_size received 16, for which" in done.stderr
        # A batch that fits trains beside the process that holds the memory.
        gpus.train(1, *_flags(shapes, tmp_path / "fits"), environment=environment)
