"""Planned shards are written here: `WriteBalancedTFRecord`, its sink, one shard, one record.

A `ShardUnit` comes in; the records of its images are encoded, framed and written to one file,
in this process or by a pool of local ones; what is known of the file is a `ShardResult`.
"""

import lazy_loader as lazy

# The pool and the results are used where Beam is not loaded.
__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
