"""Measures the promises about speed and memory: `make bench`."""
