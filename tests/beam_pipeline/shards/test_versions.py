"""A worker whose libraries would write other bytes refuses to write."""

import importlib.metadata

import pytest

from beam_pipeline.shards.record import byte_versions, check_versions
from imageshards.errors import UserError


def test_every_library_that_decodes_a_format_is_among_the_versions(monkeypatch):
    versions = byte_versions()
    assert versions["pillow-heif"] == importlib.metadata.version("pillow-heif")
    assert {"pillow", "libjpeg", "libwebp", "libavif", "libtiff"} <= versions.keys()
    assert all(versions[name][0].isdigit() for name in ("libwebp", "libavif", "libtiff"))

    def version(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    absent = byte_versions()
    assert absent["pillow-heif"] == absent["tensorflow-transform"] == "not installed"
    with pytest.raises(UserError, match=r"pillow-heif \d\S+ here and not installed there"):
        check_versions((*versions.items(), ("of", "this test alone")))


def test_versions_that_differ_are_listed_with_the_remedy():
    same = tuple(byte_versions().items())
    check_versions(same)
    assert byte_versions("convert").keys() - dict(same).keys() == {"littlecms"}
    check_versions(tuple(byte_versions("convert").items()))
    others = r"pillow 1.1.7 here and \S+ there, gone 1 here and none there\).*constraints.txt"
    with pytest.raises(UserError, match=others):
        check_versions((*same, ("pillow", "1.1.7"), ("gone", "1")))
