"""What the fork server imports, once, for all processes that write shards."""

from beam_pipeline.imports import quick_imports

with quick_imports():
    import beam_pipeline.shards.writer  # noqa: F401
