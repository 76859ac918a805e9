"""Settings of stores: Beam's flags for them, put where the stores' own libraries look.

boto3 and Google's libraries know environment variables, files and metadata servers, and
those are left to them. Beam's flags (`--s3_endpoint_url`, …) become environment variables
of this process, and so of those it starts; a Beam worker has them in its pipeline options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

# Beam's flag (`apache_beam.options.pipeline_options.S3Options`) → what boto3 looks for.
S3_VARIABLES = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL_S3",
    "region_name": "AWS_DEFAULT_REGION",
}


def settings_from(
    flags: Sequence[str], environ: MutableMapping[str, str] = os.environ
) -> dict[str, str]:
    """Puts Beam's `--s3_…` flags into the environment.

    Args:
        flags: The command line's pipeline options: `--name=value` or `--name value`.
        environ: Where to.

    Returns:
        The variables that were set; they may hold secrets.
    """
    found = {}
    for place, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        variable = S3_VARIABLES.get(name.removeprefix("--s3_")) if name[:5] == "--s3_" else None
        if variable is None:
            continue
        if not equals and place + 1 < len(flags):
            value = flags[place + 1]
        found[variable] = value
    environ.update(found)
    return found


def s3_settings() -> Mapping[str, Any]:
    """What a Beam worker's pipeline options say about s3://; nothing elsewhere."""
    options = _pipeline_options()
    if options is None:
        return {}
    from apache_beam.options.pipeline_options import S3Options

    given = options.view_as(S3Options)
    settings = {name: getattr(given, f"s3_{name}", None) for name in S3_VARIABLES}
    if given.s3_verify is not None:
        settings["verify"] = given.s3_verify
    if given.s3_disable_ssl:
        settings["use_ssl"] = False
    return {name: value for name, value in settings.items() if value is not None}


def google_settings() -> Mapping[str, Any]:
    """What a Beam worker's pipeline options say about credentials for gs://."""
    options = _pipeline_options()
    if options is None:
        return {}
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    given = options.view_as(GoogleCloudOptions)
    settings = {
        "no_auth": given.no_auth,
        "impersonate": getattr(given, "impersonate_service_account", None),
    }
    return {name: value for name, value in settings.items() if value}


def _pipeline_options() -> Any:
    # Set by Beam's workers (`FileSystems.set_options`); not worth importing Beam for.
    module = sys.modules.get("apache_beam.io.filesystems")
    return getattr(getattr(module, "FileSystems", None), "_pipeline_options", None)
