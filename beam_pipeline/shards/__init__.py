"""Writes planned shards: `WriteBalancedTFRecord`, its sink, one shard, one record.

A `ShardUnit` lists the images of a shard. Their records are encoded, framed and written to one
file, in this process or by a pool of local processes; a `ShardResult` describes that file. The pool
and the results are also used where Beam is not imported.
"""
