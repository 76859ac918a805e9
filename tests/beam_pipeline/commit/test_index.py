"""The index of a built dataset, after records have moved."""

import hashlib

import pytest

from imageshards.index import read_index
from tests.support.builds import manifest
from tests.support.built_records import assert_records_are_as_described
from tests.support.manifests import typed

pytestmark = pytest.mark.process


def test_every_record_is_made_of_the_original_that_its_row_names(insects):
    assert assert_records_are_as_described(insects) == 36
    for row in read_index(str(insects), typed(manifest(insects))).to_pylist():
        original = (insects.parent / row["key"]).read_bytes()
        assert row["source_bytes"] == len(original)
        assert row["source_sha256"] == hashlib.sha256(original).hexdigest()
