"""A worker whose libraries would write other bytes refuses to write."""

from __future__ import annotations

import pytest

from beam_pipeline.shards.versions import byte_versions, check_versions
from imageshards.errors import UserError


def test_versions_that_differ_are_listed_with_the_remedy():
    same = tuple(byte_versions().items())
    check_versions(same)
    assert byte_versions("convert").keys() - dict(same).keys() == {"littlecms"}
    check_versions(tuple(byte_versions("convert").items()))
    others = r"pillow 1.1.7 here and \S+ there, gone 1 here and none there\).*constraints.txt"
    with pytest.raises(UserError, match=others):
        check_versions((*same, ("pillow", "1.1.7"), ("gone", "1")))
