"""What only a GPU shows: `make test-gpu`. TensorFlow is imported by the tests, not before."""

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from tests.support.commands import ROOT, TIMEOUT_SEC
from tests.support.pictures import saved, scene
from tests.support.runs import digest, metrics
from tests.support.trainer_data import make_dataset

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.process]

# The command, which is killed in its fifth step; its flags are the arguments.
KILLED = (
    "import sys; from tests.support.commands import kill_at; from trainer.__main__ import main;"
    "kill_at('trainer.training.loop', 'Loop._train', 5); sys.exit(main(sys.argv[1:]))"
)
# Prints what a served model says of pictures: the arguments are its folder and the files.
SERVED = (
    "import json, sys, tensorflow as tf; loaded = tf.saved_model.load(sys.argv[1]);"
    "files = tf.constant([open(name, 'rb').read() for name in sys.argv[2:]]);"
    "said = loaded.signatures['serving_default'](image_bytes=files);"
    "print(json.dumps(said['probabilities'].numpy().tolist()))"
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("gpu") / "shards"
    return make_dataset(path, {"train": 22, "validation": 6}, size_px=((64, 64),))


def python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that sees the GPUs of this one, and leaves it memory."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true", **environment},
        capture_output=True, text=True, timeout=TIMEOUT_SEC, check=False,
    )  # fmt: skip


def train(*flags: object) -> subprocess.CompletedProcess[str]:
    ran = python("-m", "trainer", *flags)
    assert ran.returncode == 0 and " on GPU" in ran.stdout, ran.stdout + ran.stderr
    return ran


def flags(data: pathlib.Path, output: pathlib.Path, *more: object) -> list[object]:
    small = ["--model", "cnn", "--batch_size", 8, "--seed", 3, "--replicas", 1, "--steps", 7]
    return ["--data", data, "--output", output, *small, *more]


@pytest.mark.parametrize("level", ["light", "strong"])
def test_the_device_augments_as_the_host(shapes: pathlib.Path, level: Any) -> None:
    import tensorflow as tf

    data = ims.open(str(shapes))
    asked: dict[str, Any] = {"batch_size": 8, "seed": 3, "image_size": 48, "augment": level}
    device = data.train(**asked, augment_on="device")
    assert device.augmentation.device is not None
    (shipped,) = device.batches().take(1)
    with tf.device("/GPU:0"):
        made = device.augmentation.device(shipped)
    assert "GPU:0" in made["inputs"]["image"].device
    ((images, labels),) = data.train(**asked).dataset().take(1).as_numpy_iterator()
    difference = np.abs(made["inputs"]["image"].numpy().astype(int) - images.astype(int))
    # The host crops while it decodes, and a GPU rounds otherwise: along edges only.
    assert difference.mean() < 1
    np.testing.assert_allclose(made["label"].numpy(), labels, atol=1e-5)


@pytest.mark.parametrize("flag", [["--precision", "float16"], ["--jit_compile"]], ids=" ".join)
def test_a_run_ends_with_a_finite_loss(shapes, tmp_path, flag):
    train(*flags(shapes, tmp_path, *flag))
    losses = [record["loss"] for record in metrics(tmp_path)]
    assert losses and all(map(math.isfinite, losses))


def test_two_replicas_end_up_with_the_same_bits_twice(shapes, tmp_path):
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) < 2:
        pytest.skip("needs two GPUs")
    for name in ("one", "two"):
        train(*flags(shapes, tmp_path / name, "--deterministic", "--replicas", 2))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_a_killed_run_ends_up_bit_identical(shapes, tmp_path):
    more = ["--deterministic", "--checkpoint_steps", 2]
    one, killed = (flags(shapes, tmp_path / folder, *more) for folder in ("one", "killed"))
    train(*one)
    ran = python("-c", KILLED, *killed)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert "resumes after step" in train(*killed).stdout
    assert digest(tmp_path / "killed") == digest(tmp_path / "one")


def test_several_steps_of_one_call_are_those_taken_one_by_one(shapes, tmp_path):
    for size in (1, 3):
        more = ["--deterministic", "--steps_per_execution", size]
        train(*flags(shapes, tmp_path / f"{size}", *more))
    assert digest(tmp_path / "1") == digest(tmp_path / "3")


def test_batches_are_on_the_device_before_the_step(shapes: pathlib.Path) -> None:
    import tensorflow as tf

    from trainer.reader.broken_records import BrokenRecords
    from trainer.reader.stream import TrainingStream

    described = ims.open(str(shapes)).train(batch_size=8, augment="none")
    broken = BrokenRecords(0, described.subset.dataset)
    stream = TrainingStream(described, tf.distribute.get_strategy(), broken)
    assert "GPU:0" in next(stream.iterator(0))["inputs"]["image"].device


def test_a_model_of_a_gpu_says_the_same_without_one(shapes, tmp_path):
    train(*flags(shapes, tmp_path / "run"))
    served, pictures = tmp_path / "served", [tmp_path / f"{i}.jpg" for i in range(4)]
    for i, picture in enumerate(pictures):
        picture.write_bytes(saved(scene(80 + i, 90)))
    done = python("-m", "trainer.export", "--model_path", tmp_path / "run", "--output", served)
    assert done.returncode == 0, done.stderr
    here = python("-c", SERVED, served, *pictures)
    there = python("-c", SERVED, served, *pictures, CUDA_VISIBLE_DEVICES="")
    found = [json.loads(one.stdout.splitlines()[-1]) for one in (here, there)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
