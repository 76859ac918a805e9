"""Checks a data set: re-reads it and lists all its problems."""

from beam_pipeline.verify.command import CHECKS, Verdict, verify

__all__ = ["CHECKS", "Verdict", "verify"]
