"""The one function that turns what a user gave as a place into a path or a URI."""

from __future__ import annotations

import os
import re
import urllib.parse

from imageshards.errors import UserError

# All forms of RFC 8089 for a file of this machine: file:/x, file:///x and file://localhost/x.
_FILE_URI = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.IGNORECASE)
# `pathlib.Path("gs://bucket/x")` drops one of the two slashes.
_STORE_PATH = re.compile(r"(gs|s3):/(?!/)")


def place(argument: str, given: object) -> str:
    """Returns the path or URI that a user gave as a flag, an argument or a keyword.

    `~` and `~user` become home folders, and `file:///x` becomes `/x`. A relative path stays
    relative, and a URI of a store or of the web stays as it is.

    Args:
        argument: The name of the argument that received the place, for errors.
        given: A text or an `os.PathLike`.

    Raises:
        UserError: The value is no path, or it names the home of a user who does not exist.
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
    # A shell, too, leaves `~name` alone where it knows no such user.
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
    """Returns the place as `place` does, but a path of this machine is absolute, and no slash is
    at the end.

    Processes that work elsewhere, and files that name the path, need it.
    """
    found = place(argument, given)
    scheme, separator, rest = found.partition("://")
    if separator:
        return scheme + separator + rest.rstrip("/")
    return os.path.abspath(found)
