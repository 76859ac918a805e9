"""Fills templates of paths, such as `train/{id}.jpg`, with the cells of a table's row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from imageshards.errors import UserError

_FIELD = re.compile(r"\{([^{}]+)\}")


def fields(template: str) -> list[str]:
    """Returns the columns that a template names, in their order, each once.

    Raises:
        UserError: The template names no column, or a brace has no partner.
    """
    found = list(dict.fromkeys(_FIELD.findall(template)))
    if not found or {"{", "}"} & set(_FIELD.sub("", template)):
        expected = "a path with columns of the table in braces, such as 'train/{id}.jpg'"
        raise UserError(argument="image_path", received=repr(template), expected=expected)
    return found


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Returns a template with the cells of a row in place of its columns.

    >>> fill("train/{id}.jpg", {"id": "000bec", "breed": "beagle"})
    'train/000bec.jpg'
    """
    return _FIELD.sub(lambda found: str(row[found[1]]), template)
