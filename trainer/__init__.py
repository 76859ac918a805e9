"""Trains Keras models from balanced TFRecord shards, on one CPU, on GPUs or on several hosts."""
