"""Paths and URIs as users give them, and their parts."""

from __future__ import annotations

import os
import re
import urllib.parse

from imageshards.errors import UserError

# The forms of RFC 8089 for local files: file:/x, file:///x and file://localhost/x.
_FILE_URI = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.IGNORECASE)
# `pathlib.Path("gs://bucket/x")` drops a slash, which `place` adds again.
_STORE_PATH = re.compile(r"(gs|s3):/(?!/)")


def is_local(path: str) -> bool:
    """Returns whether a path is on the local file system (has no scheme)."""
    return "://" not in path


def place(argument: str, given: object) -> str:
    """Returns the path or URI that a user gave, with `~` expanded and `file:` removed.

    A relative path stays relative. URIs of stores and of the web do not change.

    >>> place("input", "file:///data/my%20photos")
    '/data/my photos'

    Args:
        argument: Name of the argument that received the place, for errors.
        given: A string or an `os.PathLike`.

    Raises:
        UserError: The value is no path, or names the home folder of an unknown user.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str) or not text.strip():
        raise UserError(argument=argument, received=repr(text), expected="a path")
    if uri := _FILE_URI.match(text):
        return urllib.parse.unquote(text[uri.end() :])
    if not isinstance(given, str):
        text = _STORE_PATH.sub(r"\1://", text, count=1)
    if "://" in text:
        return text
    path = os.path.expanduser(text)
    # `expanduser` leaves `~name` alone if there is no such user; a folder may have that name.
    home = text.partition("/")[0]
    if path == text and text.startswith("~") and "/" in text and not os.path.lexists(home):
        raise UserError(
            argument=argument,
            received=f"{text!r}, but this machine has no home folder of {home[1:] or 'yours'}",
            expected="a path",
            remedy=f"set HOME, or write ./{home} for a folder of that name",
        )
    return path


def absolute_place(argument: str, given: object) -> str:
    """Returns `place(argument, given)` as an absolute path, without a slash at the end.

    A place needs this before another process reads it or a file records it.
    """
    found = place(argument, given)
    scheme, separator, rest = found.partition("://")
    return scheme + separator + rest.rstrip("/") if separator else os.path.abspath(found)


def join(folder: str, *names: str) -> str:
    """Returns a path below a folder."""
    if is_local(folder):
        return os.path.join(folder, *names)
    return "/".join([folder.rstrip("/"), *(name.strip("/") for name in names)])


def name_of(path: str) -> str:
    """Returns the last component of a path."""
    return path.rstrip("/").rpartition("/")[2]


def parent_of(path: str) -> str:
    """Returns the folder that a path is in."""
    return os.path.dirname(path) if is_local(path) else path.rstrip("/").rpartition("/")[0]
