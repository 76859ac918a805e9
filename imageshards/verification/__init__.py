"""Checks that a data set is what its manifest says; `imageshards.verify` and its command."""
