"""Raw JPEGs in, balanced and reproducible TFRecord shards out, as an Apache Beam job.

`imageshards build` is the job. Its transforms compose in any pipeline:
`ListImages`, `AssignSplits`, `AnalyseColumns`, `PlanShards`, `WriteBalancedTFRecord`, and
`CommitShards`, which makes a data set of what was written.
"""

import lazy_loader as lazy

from imageshards import storage as _storage

# Lazy, because `--help` and a mistake in a flag must not wait for Beam.
__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

# Asked by name when a path needs them: neither loads Beam now.
_storage.register_backend("beam_pipeline.beam_files:new_backend", first=True)
_storage.register_settings("beam_pipeline.runners.store_flags:store_settings")
