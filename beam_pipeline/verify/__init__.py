"""Checks a data set: reads it whole again and names all that is wrong with it."""

from beam_pipeline.verify.command import CHECKS, Verdict, verify

__all__ = ["CHECKS", "Verdict", "verify"]
