"""Random layers that draw for every replica anew."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

# A large odd number keeps the replicas' seeds of one layer apart from those of its neighbours.
_REPLICA_STRIDE = 0x9E3779B97F4A7C15 >> 2


class ReplicaSeeds(keras.random.SeedGenerator):
    """A seed generator whose seeds differ between replicas.

    Keras gives all replicas the same seed, and so the same dropout mask. Here the number of
    the replica is mixed in as the seed is handed out; the state itself, which is kept in
    checkpoints, stays the same on all of them. The first replica draws what Keras draws.
    """

    def next(self, ordered: bool = True) -> Any:
        """The next seed: int64 [2]."""
        seed = super().next(ordered)
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return seed
        number = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
        stride = tf.constant([_REPLICA_STRIDE, 0], seed.dtype)
        return seed + number * stride


def separate_replicas(model: keras.Model) -> int:
    """Makes every random layer inside `model` draw differently on each replica.

    Returns:
        How many seed generators there are.
    """
    generators = [
        generator
        for layer in model._flatten_layers(include_self=True)
        for generator in layer._seed_generators
    ]
    for generator in generators:
        # The layer holds on to this very object and its state, so it is not replaced.
        generator.__class__ = ReplicaSeeds
    return len(generators)
