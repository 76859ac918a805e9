"""References to images, and the plan: which split, which shard, in which order.

`refs`, `hashing`, `classes` and `plan` are arithmetic and load neither Beam nor
TensorFlow; `batching` and `transforms` wire it for Beam.
"""
