"""Balanced TFRecord shards in, a Keras model out, on one CPU or on every GPU of a machine."""

from imageshards import storage as _storage

# Loaded when a path has a scheme that no other backend knows, not now: it needs TensorFlow.
_storage.register_backend("trainer.dataset.tensorflow_files:new_backend")
