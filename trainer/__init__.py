"""Balanced TFRecord shards in, a Keras model out, on one CPU or on every GPU of a machine."""
