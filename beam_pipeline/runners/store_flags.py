"""Beam's flags about stores, made to act wherever a client of a store is made.

The layer that reads and writes stores (`imageshards.storage`) asks `store_settings` by its name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from beam_pipeline.beam_files import pipeline_flags
from imageshards import storage
from imageshards.errors import StorageError

_OWN = "IMAGESHARDS_"
# Beam's flags (`S3Options`, `GoogleCloudOptions`) → what boto3 looks for or, where the stores'
# libraries have no variable, a variable of our own.
_VARIABLES = {
    "s3_access_key_id": "AWS_ACCESS_KEY_ID",
    "s3_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "s3_session_token": "AWS_SESSION_TOKEN",
    "s3_endpoint_url": "AWS_ENDPOINT_URL_S3",
    "s3_region_name": "AWS_DEFAULT_REGION",
    "s3_verify": f"{_OWN}S3_VERIFY",
    "s3_disable_ssl": f"{_OWN}S3_DISABLE_SSL",
    "no_auth": f"{_OWN}NO_AUTH",
    "impersonate_service_account": f"{_OWN}IMPERSONATE_SERVICE_ACCOUNT",
}
_SWITCHES = ("s3_disable_ssl", "no_auth")


def export_store_flags(
    flags: Sequence[str], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Makes Beam's flags about stores act in this process and in all that it starts.

    Args:
        flags: The command line's pipeline options: `--name=value` or `--name value`.
        environ: Where to, for boto3 and for `store_settings`; values may be secrets.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in _VARIABLES:
        # A value that is missing, or too much, is refused where all of Beam's flags are checked.
        parser.add_argument(f"--{flag}", nargs="?", const="true" if flag in _SWITCHES else "")
    found = vars(parser.parse_known_args(list(flags))[0])
    given = {_VARIABLES[flag]: value for flag, value in found.items() if value is not None}
    if given:
        environ.update(given)
        storage.forget_clients()


def store_settings(scheme: str) -> Mapping[str, Any]:
    """What Beam's flags say about `gs` or `s3`: here by `export_store_flags`, in a Beam worker by
    its pipeline options.

    Returns:
        s3: `access_key_id`, `secret_access_key`, `session_token`, `region_name`, `endpoint_url`,
        `verify` (a bool, or the path of certificates), `use_ssl`. gs: `no_auth`,
        `impersonate_service_account`. Only those that were given.

    Raises:
        StorageError: --s3_verify is none of these.
    """
    given = _given_flags(scheme)
    if scheme == "s3":
        given["s3_verify"] = _verify(given["s3_verify"])
        given["s3_use_ssl"] = False if given.pop("s3_disable_ssl") else None
    return {flag.removeprefix("s3_"): value for flag, value in given.items() if value is not None}


def _given_flags(scheme: str) -> dict[str, Any]:
    """Flag → its value, None if it was not given, of those about one kind of store."""
    flags = [flag for flag in _VARIABLES if flag.startswith("s3_") == (scheme == "s3")]
    ours = {flag: _VARIABLES[flag] for flag in flags if _VARIABLES[flag].startswith(_OWN)}
    here = dict.fromkeys(flags) | {flag: os.environ.get(name) for flag, name in ours.items()}
    given = pipeline_flags()
    return here | {flag: value for flag in flags if (value := given.get(flag))}


def _verify(text: str | None) -> str | bool | None:
    """`--s3_verify` as boto3 takes it."""
    if text is None or os.path.exists(text):
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise StorageError(
        f"--s3_verify received {text!r}; expected true, false, or the path of a file of "
        "certificates to trust, on every machine that reads or writes s3://."
    )
