from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.support import replica_run
from tests.support.errors import refused
from trainer.models import strategy
from trainer.models.strategy import make_strategy, to_device

pytestmark = pytest.mark.process

# `plain` is sgd. `float16` is adamw with averages and a loss scale: every kind of state there is.
SAME = [f"same:{name}" for name in ("adamw", "plain", "clipped")]
SAME += ["augment:strong", "frozen:float16"]


@pytest.fixture(scope="module")
def two_replicas():
    """What two replicas do, found by one process: TensorFlow allows one strategy in each."""
    others = ["masks:dropout", "overflow:last", "resume:float16", "statistics:mean"]
    return replica_run.run_checks(2, *SAME, *others)


def _alone(what):
    return replica_run.check(tf.distribute.get_strategy(), what)


@pytest.mark.parametrize(
    ("replicas", "visible"), [(1, ["GPU:0"]), (2, ["GPU:0", "GPU:1"]), (3, None), (None, None)]
)
def test_gpus_without_a_replica_are_left_alone(replicas, visible, monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: [f"GPU:{i}" for i in range(3)])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: calls.append(given))
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", calls.append)
    with refused("replicas", "4", "3"):
        make_strategy(4, 12)
    make_strategy(replicas, 6)
    expected: list[Any] = [(visible, "GPU")] if visible else []
    if replicas != 1:  # after that, and before anything else
        expected.append([f"GPU:{i}" for i in range(replicas or 3)])
    assert calls == expected


def test_gpus_in_use_already_stay_visible(monkeypatch):
    begun = RuntimeError("Visible devices cannot be modified after being initialized")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0", "GPU:1"])
    monkeypatch.setattr(tf.config, "set_visible_devices", mock.Mock(side_effect=begun))
    assert make_strategy(1, 7).num_replicas_in_sync == 1


@pytest.mark.parametrize(
    ("has_driver", "named", "misses"),
    [
        (True, None, True), (False, None, False), (True, "", False), (True, "-1,0", False),
        (True, "NoDevFiles", False), (True, "0,1", True), (False, "GPU-1b2c", True),
    ],
)  # fmt: skip
def test_an_unseen_gpu_is_named(has_driver, named, misses, tmp_path, monkeypatch, capsys):
    driver = tmp_path if has_driver else tmp_path / "absent"
    monkeypatch.setattr(strategy, "NVIDIA_DRIVER", str(driver))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    for name in ("list_physical_devices", "get_visible_devices"):
        monkeypatch.setattr(tf.config, name, lambda kind: [])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", list)
    monkeypatch.setattr(strategy, "_split_cpu", lambda count: None)
    make_strategy(None, 6)
    note = capsys.readouterr().err
    assert note.count("\n") == misses and ("pip install 'tensorflow[and-cuda]'" in note) == misses
    if misses:
        with refused("replicas", "2", "tensorflow[and-cuda]"):
            make_strategy(2, 6)
    else:
        assert make_strategy(2, 6) == ["CPU:0", "CPU:1"]
    for name in ("list_physical_devices", "get_visible_devices"):
        monkeypatch.setattr(tf.config, name, lambda kind: ["GPU:0"])
    make_strategy(None, 6)
    assert not capsys.readouterr().err


def test_batches_are_prefetched_to_one_gpu_in_order(monkeypatch):
    numbers = tf.data.Dataset.range(6).map(lambda x: 12 // (4 - x))
    assert to_device(numbers) is numbers
    monkeypatch.setattr(strategy, "gpu_count", lambda: 1)  # TensorFlow takes the CPU instead
    ahead = to_device(numbers)
    assert ahead is not numbers and ahead.element_spec == numbers.element_spec
    read = iter(ahead)
    assert [int(next(read)) for _ in range(4)] == [3, 4, 6, 12]
    with pytest.raises(tf.errors.InvalidArgumentError):  # as it is raised without
        next(read)


@pytest.mark.slow
def test_every_replica_draws_its_own_dropout_mask(two_replicas):
    one, other = zip(*two_replicas["masks:dropout"], strict=True)
    alone = [step[0] for step in _alone("masks:dropout")]
    assert list(one) == alone and not any(mask in alone for mask in other)
    assert one[0] != one[1] and other[0] != other[1]


@pytest.mark.slow
def test_statistics_of_each_replica_are_averaged_once(two_replicas):
    (one, other), averaged, again = two_replicas["statistics:mean"]
    assert one != other
    np.testing.assert_allclose(averaged, [np.mean([one, other], 0)] * 2, rtol=1e-6)
    assert averaged[0] == averaged[1] and again == averaged


@pytest.mark.slow
@pytest.mark.parametrize("what", SAME)
def test_two_replicas_train_like_one(two_replicas, what):
    atol = 0.0 if what.startswith("augment:") else 2e-4
    np.testing.assert_allclose(two_replicas[what], _alone(what), atol=atol)


@pytest.mark.slow
def test_two_replicas_continue_bit_for_bit_and_skip_a_step_that_overflows_on_one(two_replicas):
    straight, resumed = two_replicas["resume:float16"]
    assert straight == resumed
    assert two_replicas["overflow:last"] == [True, 2.0]
