"""Finds equal and nearly equal pictures of a dataset, for `imageshards duplicates`."""
