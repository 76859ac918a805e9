"""Raw JPEGs in, balanced and reproducible TFRecord shards out, as an Apache Beam job.

`imageshards build` is the job. Its transforms compose in any pipeline:
`ListImages`, `AssignSplits`, `AnalyseColumns`, `PlanShards`, `WriteBalancedTFRecord`, and
`CommitShards`, which makes a data set of what was written.
"""

import lazy_loader as lazy

from beam_pipeline import beam_files as _beam_files
from imageshards import storage as _storage

# Lazy, because `--help` and a mistake in a flag must not wait for Beam.
__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

# Called when a path first needs them: neither loads Beam now.
_storage.extend(_beam_files.store_settings, _beam_files.new_backend)
