"""`imageshards duplicates`: equal and nearly equal pictures of a data set; without Beam."""
