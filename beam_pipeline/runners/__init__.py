"""Runs a build on this machine or on a cluster: `runner.choose` returns the `Runner`."""
