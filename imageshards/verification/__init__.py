"""Checks that a dataset is what its manifest says; `imageshards.verify` and its command."""
