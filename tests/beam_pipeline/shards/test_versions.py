"""What differs between the libraries of two hosts."""

from __future__ import annotations

import pytest

from beam_pipeline.shards.versions import byte_versions, differences, versions


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({"python": "3.11", "pillow": "12.3.0"}, ""),
        ({"python": "3.11", "pillow": "12.3.0", "more": "1"}, ""),
        ({"python": "3.11", "pillow": "12.2.0"}, "pillow 12.3.0 here and 12.2.0 there"),
        ({"python": "3.12"}, "python 3.11 here and 3.12 there, pillow 12.3.0 here and none there"),
    ],
)
def test_versions_that_differ_are_listed(worker, expected):
    assert differences({"python": "3.11", "pillow": "12.3.0"}, worker) == expected


def test_what_decides_the_bytes_is_a_part_of_what_must_be_the_same():
    assert byte_versions().items() < versions().items()
