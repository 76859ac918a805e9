"""Planned shards are written here: `WriteBalancedTFRecord`, its sink, one shard, one record.

A `ShardUnit` comes in; the records of its images are encoded, framed and written to one file,
in this process or by a pool of local ones; what is known of the file is a `ShardResult`. The pool
and the results are used where Beam is not loaded.
"""
