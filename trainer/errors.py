"""The one error a person is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """Something the caller can mend: shown as one sentence without a traceback.

    The message names the argument, what was received, what was expected and the remedy.
    """
