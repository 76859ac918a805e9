"""`python -m beam_pipeline.duplicates`: equal and nearly equal pictures of a data set."""
