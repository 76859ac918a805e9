"""Google's credentials, found as Google's own libraries find them, but without their patience."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import google.auth
import google.auth.credentials
import google.auth.exceptions

from imageshards.storage import settings as storage_settings

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)


def find_credentials(scopes: Sequence[str] = _SCOPES) -> Any:
    """Google's own search for credentials, without its 20 s of waiting; nobody if none."""
    settings = storage_settings.google_settings()
    if os.environ.get("STORAGE_EMULATOR_HOST") or settings.get("no_auth"):
        return google.auth.credentials.AnonymousCredentials()
    before = os.environ.get("NO_GCE_CHECK")
    if before is None and not _has_metadata_server():
        os.environ["NO_GCE_CHECK"] = "true"
    try:
        found, _ = google.auth.default(list(scopes))
    except google.auth.exceptions.DefaultCredentialsError:
        return google.auth.credentials.AnonymousCredentials()
    finally:
        if before is None:
            os.environ.pop("NO_GCE_CHECK", None)
    if settings.get("impersonate"):
        from google.auth import impersonated_credentials

        *delegates, target = str(settings["impersonate"]).split(",")
        return impersonated_credentials.Credentials(
            found, target, list(scopes), delegates=delegates
        )
    return found


def _has_metadata_server() -> bool:
    """Whether this is a machine of Google's; elsewhere nobody answers at that address."""
    host, _, port = os.environ.get("GCE_METADATA_HOST", "169.254.169.254").partition(":")
    try:
        socket.create_connection((host, int(port or 80)), timeout=1).close()
    except OSError:
        return False
    return True
