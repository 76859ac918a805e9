"""Chooses the devices that share a batch, and keeps the random layers of replicas apart."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from imageshards.errors import Arg, UserError
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.cluster.tensorflow_internals import limit_start
from trainer.config import refuse_uneven
from trainer.models.keras_internals import layers_of, seed_generators

# A large odd number keeps the replicas' seeds of one layer apart from those of its neighbours.
_REPLICA_STRIDE = 0x9E3779B97F4A7C15 >> 2
# Number of batches that wait in the memory of a GPU.
PREFETCH_BATCHES = 2
# This folder exists while NVIDIA's driver is loaded, whether or not TensorFlow finds CUDA.
NVIDIA_DRIVER = "/proc/driver/nvidia"
# First entries of CUDA_VISIBLE_DEVICES that hide all GPUs. Slurm sets the last of these.
_NO_GPU = ("", "-1", "NoDevFiles")
# The strategies over several devices that this process has used, the last one at the end.
_strategies: list[tf.distribute.Strategy] = []
_GPU_REMEDY = (
    "install CUDA for TensorFlow by pip install 'tensorflow[and-cuda]', or set "
    "CUDA_VISIBLE_DEVICES= to train on the CPU on purpose"
)


def make_strategy(
    replicas: int | None, batch_size: int, hosts: Hosts = ONE_HOST
) -> tf.distribute.Strategy:
    """Returns the strategy over `replicas` GPUs or, on a host without GPUs, logical CPU devices.

    Call it once, before anything else uses TensorFlow: logical devices cannot be made later, and a
    second `MirroredStrategy` in the same process may hang. `replicas` is for each host, by default
    every GPU, or one CPU; `batch_size` is global.

    Raises:
        UserError: There are fewer GPUs, TensorFlow does not see the machine's GPUs, or the replicas
            cannot share the batch equally.
    """
    gpus = tf.config.get_visible_devices("GPU")
    count = replicas if replicas is not None else max(1, len(gpus))
    if gpus and count > len(gpus):
        raise UserError(
            argument="replicas",
            received=str(count),
            expected=f"at most {len(gpus)}, the GPUs TensorFlow sees",
            remedy="set CUDA_VISIBLE_DEVICES= to train on logical CPU devices instead",
        )
    refuse_uneven(batch_size, count * hosts.count)
    # Several replicas were meant for GPUs. One replica on the CPU is slow, which a note says.
    if count > 1 and misses_gpus():
        raise UserError(
            argument="replicas",
            received=f"{count}, but TensorFlow sees no GPU of this machine",
            expected="1, or GPUs that TensorFlow sees",
            remedy=_GPU_REMEDY,
        )
    note_missed_gpus()
    if count < len(gpus):
        # TensorFlow would take nearly all memory of the other GPUs, too. If it has started, it has
        # taken the memory already.
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices(gpus[:count], "GPU")
    if hosts.count > 1:
        return _multi_worker(count, len(gpus), hosts)
    # The default strategy does the same for one replica, without the cost of mirroring.
    if count == 1:
        return tf.distribute.get_strategy()
    if not gpus:
        _split_cpu(count)
    kind = "GPU" if gpus else "CPU"
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(count)])


def remember(strategy: tf.distribute.Strategy) -> None:
    """Lets `shared_strategy` return a strategy that a user has made."""
    if strategy.num_replicas_in_sync > 1:
        _strategies[:] = [one for one in _strategies if one is not strategy] + [strategy]


def shared_strategy(replicas: int | None, batch_size: int) -> tf.distribute.Strategy:
    """Returns the strategy of a function that people may call several times in their program.

    This is the strategy in whose scope the caller is, or on GPUs the last strategy that the program
    used, unless another number of `replicas` is given; otherwise the result of `make_strategy`.
    """
    in_scope = tf.distribute.has_strategy()
    known = [tf.distribute.get_strategy()] if in_scope else _strategies[::-1]
    any_will_do = replicas is None and (in_scope or gpu_count() > 0)
    # A second strategy over the same devices could disturb the sums of the first one.
    fitting = [one for one in known if any_will_do or one.num_replicas_in_sync == replicas]
    if in_scope and not fitting:
        raise UserError(
            argument="replicas",
            received=f"{replicas} in the scope of a strategy of {known[0].num_replicas_in_sync}",
            remedy="leave it out there",
        )
    strategy = fitting[0] if fitting else make_strategy(replicas, batch_size)
    remember(strategy)
    refuse_uneven(batch_size, strategy.num_replicas_in_sync)
    return strategy


@contextlib.contextmanager
def device_errors(batch_size: int) -> Iterator[None]:
    """Raises a `UserError` if a step of a model fails for want of memory, or of one strategy."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as e:
        raise UserError(
            argument="batch_size",
            received=f"{batch_size}, for which the devices have not enough memory",
            expected="a smaller batch, or a smaller " + Arg("image_size"),
        ) from e
    except tf.errors.OpError as e:
        # TensorFlow numbers the sums of every strategy from the same number on. On GPUs the sums of
        # another shape only cancel the step.
        is_other_sum = "mismatch in the collective" in str(e)
        if not (is_other_sum or (isinstance(e, tf.errors.CancelledError) and len(_strategies) > 1)):
            raise
        raise UserError(
            "TensorFlow mixed up the sums of two strategies of this process",
            expected="one tf.distribute strategy over several devices in a process",
            remedy="start the program again, make one strategy, and make every model in its scope",
        ) from e


def gpu_count() -> int:
    """Returns the number of GPUs that TensorFlow sees, and that the program has not hidden."""
    return len(tf.config.get_visible_devices("GPU"))


def misses_gpus() -> bool:
    """Returns whether TensorFlow sees no GPU although the machine or the job has NVIDIA's GPUs."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    hides = named is not None and named.split(",")[0].strip() in _NO_GPU
    if hides or tf.config.list_physical_devices("GPU"):
        return False
    return named is not None or os.path.exists(NVIDIA_DRIVER)


def note_missed_gpus() -> None:
    """Says on stderr that the CPU trains instead of a GPU, as TensorFlow's own warnings are off."""
    if misses_gpus():
        print(
            f"note: TensorFlow sees no GPU of this machine and runs on the CPU; {_GPU_REMEDY}.",
            file=sys.stderr,
        )


def describe(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices for people, for example `2 replicas on CPU`."""
    count = strategy.num_replicas_in_sync
    kind = "GPU" if gpu_count() else "CPU"
    hosts = host_count(strategy)
    where = f" of {hosts} hosts" if hosts > 1 else ""
    return f"{count} {'replica' if count == 1 else 'replicas'} on {kind}{where}"


def host_count(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of hosts that share a batch."""
    resolver = strategy.cluster_resolver
    return resolver.cluster_spec().num_tasks("worker") if resolver is not None else 1


class ReplicaSeeds(keras.random.SeedGenerator):
    """A seed generator whose seeds differ between replicas.

    Keras gives all replicas the same seed, and so the same dropout mask. This class mixes the
    number of the replica into each seed. The first replica draws the same numbers as with Keras.
    The state, which checkpoints store, stays the same on all replicas.
    """

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns the next seed, int64 [2]."""
        seed = super().next(ordered)
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return seed
        number = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
        stride = tf.constant([_REPLICA_STRIDE, 0], seed.dtype)
        return seed + number * stride


def separate_replicas(model: keras.Model) -> None:
    """Makes every random layer inside `model` draw differently on each replica."""
    for generator in seed_generators(model):
        # The layer refers to this object and its state, so the object cannot be replaced.
        generator.__class__ = ReplicaSeeds


def average_statistics(
    model: keras.Model, concatenate: Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> None:
    """Gives all replicas the mean of the statistics that their batch normalisations have averaged.

    `concatenate` joins the arrays of all hosts along the first axis, given a name and arrays.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    norms = [x for x in layers_of(model) if isinstance(x, keras.layers.BatchNormalization)]
    found = [variable for norm in norms for variable in norm.non_trainable_variables]
    # Keras would evaluate with each replica's own statistics, and save those of the first one. In
    # float64 the mean of equal values is exactly this value, so a second call changes nothing.
    mine = {
        f"{i}": np.stack([part.numpy().astype(np.float64) for part in variable.value.values])
        for i, variable in enumerate(found)
    }
    for i, values in concatenate("statistics", mine).items():
        found[int(i)].assign(values.mean(0))


def to_device(dataset: tf.data.Dataset | tf.distribute.DistributedDataset) -> Any:
    """Returns a dataset that copies batches to the GPU while the step before still runs."""
    # Without a strategy, a batch would be copied within its step. The distributed datasets of all
    # strategies, those of one device too, copy batches ahead themselves.
    if not isinstance(dataset, tf.data.Dataset) or not gpu_count():
        return dataset
    return dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0", PREFETCH_BATCHES))


def _multi_worker(count: int, gpus: int, hosts: Hosts) -> tf.distribute.Strategy:
    if not gpus and count > 1:
        raise UserError(
            argument="replicas",
            received=f"{count} with "
            + Arg("cluster")
            + " on a host without GPUs, where TensorFlow has one replica a process",
            expected="1",
            remedy="name the host several times, each with a port of its own",
        )
    hosts.compare({"The devices of a host": f"{count} {'GPU' if gpus else 'CPU'}"})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(hosts.addresses)}),
        task_type="worker",
        task_id=hosts.index,
        num_accelerators={"GPU": count if gpus else 0},
        rpc_layer="grpc",
    )
    limit_start(hosts.count, hosts.timeout_sec)
    # The port that this opens was free when the hosts met.
    return tf.distribute.MultiWorkerMirroredStrategy(resolver)


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    # TensorFlow refuses after its start, but an earlier call may have made enough devices.
    except RuntimeError as e:
        if len(tf.config.list_logical_devices("CPU")) < count:
            raise UserError(
                argument="replicas",
                received=f"{count}, but TensorFlow already runs in this process with "
                f"{len(tf.config.list_logical_devices('CPU'))} CPU device(s)",
                remedy="start a new process",
            ) from e
