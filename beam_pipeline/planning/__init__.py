"""References to images, and the plan: which split, which shard, in which order.

`refs`, `classes` and `plan` are arithmetic and load neither Beam nor
TensorFlow; `transforms` wires it for Beam.
"""
