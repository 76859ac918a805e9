"""Compares the versions of the libraries that decide the bytes of a shard on all hosts."""

from __future__ import annotations

import functools
import importlib.metadata
import socket

import PIL
from PIL import features as pillow_features

from imageshards import __version__
from imageshards.errors import UserError


def byte_versions(icc: str = "drop") -> dict[str, str]:
    """Returns the versions of the libraries that decide the bytes of a shard.

    The fingerprint of a dataset depends on them. The colour library counts only if `icc` is
    `convert`.
    """
    turbo = pillow_features.version_feature("libjpeg_turbo")
    lcms = pillow_features.version_module("littlecms2")
    return {
        "imageshards": __version__,
        # The loaded version, which an upgrade of the package on the disk does not change.
        "pillow": PIL.__version__,
        "libjpeg": f"turbo {turbo}" if turbo else str(pillow_features.version_codec("jpg")),
        # A wheel of Pillow contains these; the Pillow of a Linux distribution uses the system's.
        "libwebp": str(pillow_features.version_module("webp")),
        "libavif": str(pillow_features.version_module("avif")),
        "libtiff": str(pillow_features.version_codec("libtiff")),
        # Without this package a HEIC is rejected.
        "pillow-heif": _installed("pillow-heif"),
        "tensorflow-transform": _installed("tensorflow-transform"),
        **({"littlecms": str(lcms)} if icc == "convert" else {}),
    }


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def check_versions(expected: tuple[tuple[str, str], ...]) -> None:
    """Raises `UserError` if a library that decides bytes has not the client's version here."""
    here = byte_versions("convert")
    differ = ", ".join(
        f"{name} {version} here and {here.get(name, 'none')} there"
        for name, version in expected
        if here.get(name) != version
    )
    if differ:
        raise UserError(
            f"versions on worker host {socket.gethostname()} differ from the client's ({differ})",
            expected="the same ones, as the bytes depend on them",
            remedy="install this release with its constraints.txt on both, and start the workers "
            "again",
        )
