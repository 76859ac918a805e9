"""Turns a place given by a user, such as `~/photos` or `file:///data`, into a path or a URI."""

from __future__ import annotations

import os
import re
import urllib.parse

from imageshards.errors import UserError

# The forms of RFC 8089 for local files: file:/x, file:///x and file://localhost/x.
_FILE_URI = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.IGNORECASE)
# `pathlib.Path("gs://bucket/x")` drops a slash, which `place` adds again.
_STORE_PATH = re.compile(r"(gs|s3):/(?!/)")


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
        whose = f"no user {home[1:]!r}" if home[1:] else "no home folder of yours: set HOME"
        raise UserError(
            argument=argument,
            received=f"{text!r}, but this machine has {whose}",
            expected="a path",
            remedy=f"write ./{home} for a folder of that name",
        )
    return path


def absolute_place(argument: str, given: object) -> str:
    """Returns `place(argument, given)` as an absolute path, without a slash at the end.

    A place needs this before another process reads it or a file records it.
    """
    found = place(argument, given)
    scheme, separator, rest = found.partition("://")
    if separator:
        return scheme + separator + rest.rstrip("/")
    return os.path.abspath(found)
