"""What keeps TensorFlow from reading a `gs://` bucket, found out before it waits and tries again.

TensorFlow asks ten times, with longer and longer waits, where nothing answers, and then says
so in words of its own.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import urllib.error
import urllib.request

from imageshards.errors import UserError

ENDPOINT = "https://storage.googleapis.com"
METADATA_ADDRESS = ("169.254.169.254", 80)
ANSWER_SEC = 5.0
# The metadata server of a machine in Google's cloud is next door.
METADATA_SEC = 1.0

_KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# Read by TensorFlow; keeps it from asking for credentials where nobody has any.
_NO_METADATA_VARIABLE = "NO_GCE_CHECK"
# What TensorFlow asks for at a time.
_READ_AHEAD_VARIABLE, _READ_AHEAD_MIB = "GCS_READ_CACHE_BLOCK_SIZE_MB", "8"
_REMEDY = (
    f"run gcloud auth application-default login, or set {_KEY_VARIABLE} to the key file of a "
    "service account"
)


def check(uri: str, flag: str) -> None:
    """Looks for credentials and for the bucket, each in a few seconds at most.

    Without credentials TensorFlow is told not to look for any: public buckets need none.

    Raises:
        UserError: There is no such bucket, no answer, or the credentials' file is missing.
    """
    bucket = uri.partition("://")[2].partition("/")[0]
    if not bucket:
        raise UserError(
            f"{flag} received {uri!r}, which names no bucket; expected gs://BUCKET/FOLDER."
        )
    key = os.environ.get(_KEY_VARIABLE)
    if key and not os.path.isfile(key):
        raise UserError(
            f"{flag} received {uri!r}, but {_KEY_VARIABLE} is {key!r}, where there is no file; "
            "expected the key file of a service account: set it anew, or unset it."
        )
    # TensorFlow reads 64 MiB of every open file ahead, and the reader has up to 16 open.
    os.environ.setdefault(_READ_AHEAD_VARIABLE, _READ_AHEAD_MIB)
    if not has_credentials():
        os.environ[_NO_METADATA_VARIABLE] = "true"
    trouble = _trouble_of(bucket)
    if trouble:
        raise UserError(f"{flag} received {uri!r}, whose bucket {trouble}.")


def has_credentials() -> bool:
    """Whether there are credentials where TensorFlow looks for them."""
    if os.environ.get(_KEY_VARIABLE) or os.environ.get("GOOGLE_AUTH_TOKEN_FOR_TESTING"):
        return True
    settings = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
    if os.path.isfile(os.path.join(settings, "application_default_credentials.json")):
        return True
    if os.environ.get(_NO_METADATA_VARIABLE, "").lower() == "true":
        return False
    return _metadata_answers()


def refusal() -> str:
    """Why a bucket refuses to be read, without a full stop."""
    if has_credentials():
        return "access is refused: give the account the role Storage Object Viewer there"
    return f"access is refused to nobody (no credentials were found): {_REMEDY}"


def _metadata_answers() -> bool:
    # By its number: a name may take long not to be found. Other clouds answer there, too.
    connection = http.client.HTTPConnection(*METADATA_ADDRESS, timeout=METADATA_SEC)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _trouble_of(bucket: str) -> str | None:
    """What is wrong with a bucket, as far as it can be seen without credentials."""
    found: list[str | None] = []
    # In a thread: looking up a name knows no time-out.
    asking = threading.Thread(target=lambda: found.append(_ask(bucket)), daemon=True)
    asking.start()
    asking.join(2 * ANSWER_SEC)
    return found[0] if found else _unreachable("no answer in time")


def _ask(bucket: str) -> str | None:
    try:
        opener = urllib.request.build_opener()  # with the proxies of now
        with opener.open(f"{ENDPOINT}/{bucket}?max-keys=1", timeout=ANSWER_SEC):
            return None
    except urllib.error.HTTPError as e:
        if e.code == 404 and b"NoSuchBucket" in e.read():
            return "does not exist; expected an existing one: fix the name"
    except (urllib.error.URLError, OSError) as e:
        reason = getattr(e, "reason", e)
        # A name that is not found, a refused connection, a time-out: nobody was reached.
        if isinstance(reason, socket.gaierror | ConnectionError | TimeoutError):
            return _unreachable(str(reason))
    return None


def _unreachable(reason: str) -> str:
    return f"cannot be reached ({reason}); fix the network, or its proxy (https_proxy)"
