"""Benchmarks that check the promises about speed and memory: `make bench`."""
