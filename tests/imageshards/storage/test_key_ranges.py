"""Ranges of names: every name in one of them, and about as many names in each."""

from __future__ import annotations

import bisect
import itertools
import random
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.inputs import listing
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.listing import ListingTask, list_task, listing_tasks
from beam_pipeline.options import InputOptions
from imageshards import storage
from imageshards.storage import key_ranges
from tests.support.store_servers import StoreServer, store_server
from tests.support.stores import store_uri

PREFIX = "s3://bucket/in/"
PAGE = 1000
WANTED = 64


class Names:
    """A store with these names in one folder, which counts what it is asked."""

    def __init__(self, names: list[str]):
        self.paths = sorted(PREFIX + name for name in names)
        self.asked = 0

    def first(self, prefix: str, after: str) -> str | None:
        self.asked += 1
        place = bisect.bisect_right(self.paths, after)
        return next((p for p in self.paths[place : place + 1] if p.startswith(prefix)), None)

    def cuts(self, page: int = PAGE, wanted: int = WANTED) -> list[str]:
        return key_ranges.cut_points(PREFIX, self.paths[:page], self.first, wanted)

    def in_ranges(self, cuts: list[str]) -> list[int]:
        places = [0, *(bisect.bisect_right(self.paths, cut) for cut in cuts), len(self.paths)]
        return [end - begin for begin, end in itertools.pairwise(places)]


@pytest.mark.parametrize(
    ("name", "few"),
    [
        (lambda n: f"IMG_{n:09d}.jpg", 35),
        (lambda n: f"{n}.jpg", 30),  # most of them begin with 1, 2 or 3
        (lambda n: f"2026/11/{n % 28 + 1:02d}/export-{n:06d}.jpg", 20),
        (lambda n: uuid.UUID(int=random.Random(n).getrandbits(128)).hex + ".jpg", 70),
        (lambda n: random.Random(n).choice("abcXYZ09_-é") + f"{n:x}", 15),
    ],
    ids=["numbered", "numbers", "dates", "random", "mixed"],
)
def test_names_of_many_kinds_are_cut_into_parts_of_like_size(
    monkeypatch, name: Callable[[int], str], few: int
):
    monkeypatch.setattr(key_ranges, "FEW_PAGES", 20)
    count = 40_000
    store = Names([name(n) for n in range(count)])
    cuts = store.cuts()
    assert cuts == sorted(set(cuts)) and len(cuts) >= WANTED // 2 - 1
    sizes = store.in_ranges(cuts)
    assert sum(sizes) == count
    # So many workers would be busy until the end.
    assert count / max(sizes) > few
    assert store.asked < 3000


@pytest.mark.parametrize(
    "strays", [["A.txt", "B.txt", "C.txt", "D"], ["\U0010ffff1", "\U0010ffff2", "é"]]
)
def test_some_names_of_another_kind_hinder_nothing(monkeypatch, strays):
    monkeypatch.setattr(key_ranges, "FEW_PAGES", 20)
    store = Names([f"IMG_{n:09d}.jpg" for n in range(40_000)] + strays)
    assert max(store.in_ranges(store.cuts())) < 2000
    assert store.asked < 1000


@pytest.mark.parametrize(
    ("count", "letters"), [(1_200, "".join(map(chr, range(0x4E00, 0x52B0)))), (9_000, "aZ09")]
)
def test_an_alphabet_of_any_size_asks_for_a_bounded_number_of_names(count, letters):
    store = Names([f"{letters[n * 7 % len(letters)]}{n}.jpg" for n in range(count)])
    store.cuts()
    assert store.asked < 200


@pytest.mark.parametrize("count", [1001, 5_000, 20_000])
def test_a_few_pages_are_listed_as_a_whole_and_few_questions_tell(count):
    store = Names([f"IMG_{n:09d}.jpg" for n in range(count)])
    assert store.cuts() == []
    assert store.asked < 400


@given(
    names=st.sets(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=5),
    wanted=st.integers(2, 20),
)
def test_whatever_the_names_the_cuts_are_in_order(names, wanted):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_ranges, "FEW_PAGES", 0)  # never few enough
        store = Names(list(names))
        cuts = store.cuts(page=4, wanted=wanted)
        assert len(cuts) <= 4 * wanted
    assert cuts == sorted(set(cuts))
    assert all(cut.startswith(PREFIX) for cut in cuts)
    assert sum(store.in_ranges(cuts)) == len(names)


def test_a_store_that_begins_where_it_wants_is_not_asked_for_ever():
    """One that is only similar to a real one, and passes over what it does not know."""
    paths = [f"{PREFIX}{n:05d}" for n in range(3000)]

    def first(prefix: str, after: str) -> str | None:
        return paths[0] if paths[0] > after else None

    assert len(key_ranges.cut_points(PREFIX, paths[:PAGE], first, WANTED)) < WANTED


def test_other_file_systems_are_not_listed_twice(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(b"x")
    monkeypatch.setattr(listing, "PAGE", 1)
    monkeypatch.setattr(storage, "files_from", lambda *_: pytest.fail("listed already"))
    for root in (str(tmp_path), store_uri(tmp_path)):
        assert len(list(listing_tasks(InputOptions(root, layout="flat", label_regex="(.)")))) == 1


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running


@pytest.mark.parametrize("pattern", ["", "/*.jpg", "/1*/*"])
def test_a_long_folder_is_listed_once_in_ranges(server, monkeypatch, pattern):
    root = f"{server.bucket()}/in"
    names = {f"{n:03d}/{n * 7 % 120:05d}{'.jpg' if n % 5 else '.txt'}" for n in range(120)}
    names |= {"1", "10", "100", "100/", "2é.jpg", "é.jpg", ".hidden.jpg"}
    for name in names:
        storage.write(f"{root}/{name}", b"x")
    storage.write(f"{root}-else/1.jpg", b"x")
    monkeypatch.setattr(listing, "PAGE", 5)
    monkeypatch.setattr(listing, "RANGES", 12)
    monkeypatch.setattr(key_ranges, "FEW_PAGES", 5)
    source = InputOptions(root + pattern, layout="flat", label_regex=r"(.)\.")
    whole = [ListingTask(source.input, kind="glob" if pattern else "folder")]
    pieces = list(listing_tasks(source))
    assert len(pieces) >= 12
    assert {(piece.path, piece.kind) for piece in pieces} == {(f.path, f.kind) for f in whole}
    assert found_in(pieces, source) == found_in(whole, source)
    server.clear()
    found_in(pieces, source)
    assert len(server.requests()) == len(pieces)


def found_in(pieces: list[ListingTask], source: InputOptions) -> list[str]:
    """Keys, and why names were passed over, in order."""
    found = [each for piece in pieces for each in list_task(piece, source, None)]
    keys = [ref.key for batch in found if not isinstance(batch, Skipped) for ref in batch.refs]
    assert keys == sorted(set(keys))
    return keys + sorted(each.reason for each in found if isinstance(each, Skipped))


def test_a_class_may_be_named_like_a_glob(server):
    root = f"{server.bucket()}/in"
    for name in ("C/1.jpg", "C[2]/1.jpg", "[misc]/1.jpg", "loose.jpg"):
        storage.write(f"{root}/{name}", b"x")
    source = InputOptions(root)
    found = [each for piece in listing_tasks(source) for each in list_task(piece, source, None)]
    refs = [ref for each in found if not isinstance(each, Skipped) for ref in each.refs]
    assert sorted((ref.label, ref.key) for ref in refs) == [
        ("C", "C/1.jpg"), ("C[2]", "C[2]/1.jpg"), ("[misc]", "[misc]/1.jpg"),
    ]  # fmt: skip


def test_class_folders_are_cut_where_they_are_few(server, monkeypatch):
    root = f"{server.bucket()}/in"
    for n in range(60):
        storage.write(f"{root}/{'cat' if n < 50 else 'dog'}/{n:03d}.jpg", b"x")
    monkeypatch.setattr(listing, "PAGE", 5)
    monkeypatch.setattr(key_ranges, "FEW_PAGES", 8)
    source = InputOptions(root)
    monkeypatch.setattr(listing, "RANGES", 3)
    assert all(piece.after == piece.until == "" for piece in listing_tasks(source))
    monkeypatch.setattr(listing, "RANGES", 8)
    pieces = list(listing_tasks(source))
    of_cats = [piece for piece in pieces if piece.label == "cat"]
    assert len(of_cats) >= 4
    found = [each for piece in pieces for each in list_task(piece, source, None)]
    labels = [ref.label for b in found if not isinstance(b, Skipped) for ref in b.refs]
    assert sorted(labels) == ["cat"] * 50 + ["dog"] * 10
