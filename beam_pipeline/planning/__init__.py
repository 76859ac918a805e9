"""References to images, and the plan: the split, the shard and the position of each image.

`refs`, `classes` and `plan` are arithmetic and load neither Beam nor TensorFlow. `transforms` wires
them for Beam.
"""
