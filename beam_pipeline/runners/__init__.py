"""Runs a build on this machine or on a cluster: `choice.choose` returns the `Runner`."""
