"""Defines the options for images at addresses of the web."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from beam_pipeline import option_texts
from imageshards.commands.options import Option, check_options


@dataclasses.dataclass(frozen=True)
class UrlOptions:
    """Options for images at `http://` and `https://` addresses."""

    # fmt: off
    url_timeouts: Annotated[tuple[float, float, float], Option(
        "time limits in seconds: to connect, between two pieces of an answer, and for one image in "
        "total, with redirects and retries (default: 10,30,120)",
        parse=option_texts.parse_timeouts, metavar="CONNECT,READ,TOTAL")] = (10.0, 30.0, 120.0)
    url_retries: Annotated[int, Option(
        "retries after HTTP status 429 or 5xx, a time-out or a broken connection", least=0)] = 3
    url_requests_per_host: Annotated[int, Option(
        "requests that one process sends to a host at the same time", least=1)] = 8
    allow_private_hosts: Annotated[bool, Option(
        "permit connections to loopback, private and link-local addresses")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
