"""How references, batches of them and shards travel, and what is said of missing files."""

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beam_pipeline.planning.refs import (
    ImageRef,
    RefBatch,
    ShardUnit,
    why_missing,
)
from imageshards.manifest import FeatureSpec

TEXT = st.text(st.characters())  # lone surrogates too: names of files may be no text
COLUMNS = st.dictionaries(TEXT, st.integers() | st.floats(allow_nan=False) | st.lists(TEXT))
REFS = st.builds(
    ImageRef, TEXT, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT,
    st.integers(-1, 2**63), st.integers(0, 2**63), st.none() | COLUMNS,
    sides=st.tuples(st.tuples(st.floats(allow_nan=False))),
)  # fmt: skip


@given(st.lists(REFS, max_size=5))
@example([])
@example([ImageRef("nul\0in a key", "elsewhere", "x", None, "g", 2**64, -1, {"a": [1]})])
def test_references_round_trip_in_batches_and_in_units(refs):
    features = {"age": FeatureSpec("int64", ())}
    unit = ShardUnit("train", 3, 8, {"dog": 1, "cat": 0}, refs, features)
    batch, found = pickle.loads(pickle.dumps((RefBatch(refs), unit), protocol=5))
    assert batch.refs == refs and found == unit
    assert list(found.class_ids) == ["dog", "cat"]
    assert all(type(ref) is ImageRef for ref in [*batch.refs, *found.refs])


def test_a_reference_travels_in_few_bytes():
    keys = [f"cat/cat_{i:08d}.jpg" for i in range(2000)]
    refs = [ImageRef(key, f"gs://bucket/photos/{key}", "cat", "train") for key in keys]
    plain = len(pickle.dumps([tuple(ref) for ref in refs], protocol=5))
    assert len(pickle.dumps(RefBatch(refs), protocol=5)) < 0.3 * plain


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "tables" / "img").mkdir(parents=True)
    (tmp_path / "tables" / "img" / "b.png").touch()
    (tmp_path / "tables" / "file").touch()
    return tmp_path / "tables"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("photos/a.jpg", "'{t}' has no folder 'photos')"),
        ("img/b", "'{t}/img' has no 'b')"),
        ("img\\b.png", "'{t}' has no 'img\\\\b.png')"),
        ("file/c.jpg", "'{t}' has no folder 'file')"),
        ("a\0b/c.jpg", "'{t}' has no folder 'a\\x00b')"),
    ],
)
def test_the_first_missing_part_of_a_path_is_named(tables, path, said):
    place = f"{tables}/{path}"
    assert why_missing(place) == f"{place!r} (the folder {said.replace('{t}', str(tables))}"


def test_places_in_stores_below_the_root_and_of_windows_are_named():
    assert why_missing("gs://bucket/x.jpg") == "'gs://bucket/x.jpg'"
    assert why_missing("/no-such/x.jpg").startswith("'/no-such/x.jpg' (the folder '/' has no fol")
    assert "is an absolute path of Windows" in why_missing("/C:\\photos\\1.jpg")
