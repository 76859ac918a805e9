"""`imageshards duplicates`: equal and nearly equal pictures of a dataset; without Beam."""
