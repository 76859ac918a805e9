"""Checks that a dataset matches its manifest, for `imageshards verify`."""
