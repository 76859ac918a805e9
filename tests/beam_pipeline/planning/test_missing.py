"""A build whose paths are all wrong is told one of them, and what is there in its stead."""

import pytest

from beam_pipeline.planning import missing
from beam_pipeline.planning.missing import Missing, check_some_exist, missing_of, why_missing
from beam_pipeline.planning.refs import MISSING, ImageRef
from tests.support.errors import refused


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


def test_a_build_ends_only_where_all_images_are_missing(tables):
    gone = [ImageRef(n, f"{tables}/{n}", "a", mtime_ns=MISSING) for n in ("c.jpg", "b.jpg")]
    unknown = ImageRef("d", f"{tables}/d", "a")
    found = missing.add_missing([missing_of(gone[:1]), missing_of(gone[1:]), missing_of([unknown])])
    assert found == Missing(2, f"{tables}/b.jpg")
    check_some_exist(3, found)
    check_some_exist(0, Missing())
    with refused("input", "2 images", "b.jpg", "relative to"):
        check_some_exist(2, found)
