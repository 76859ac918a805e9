import base64
import json
import pathlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from PIL import Image

import imageshards as ims
from imageshards.example import decode_example, encode_example
from imageshards.manifest import BOX_FEATURES, IndexFile, Input, Shard, Split
from imageshards.reporting.command import main
from imageshards.reporting.page import page_of, quotas, write_report
from tests.support.dataset_factory import Dataset, framed
from tests.support.html_page import Page
from tests.support.manifests import blank, typed
from tests.support.pictures import opened_bytes, saved

HOSTILE = ["<script>alert(1)</script>", "a \"quoted\" & 'odd' name", "日本語", "no\x00utf\udce9"]
REJECT = dict.fromkeys(("uri", "label", "split", "stage"), "x")
INPUTS = [Input("/sets/a", "f" * 64, 1234), Input("/photos", None, 5)]
WARNING = "'Cat' & 'cat'"


def written(dataset):
    path = write_report(str(dataset.directory), typed(dataset.manifest))
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return text, Page(text)


def many(num_classes, num_shards, **first):
    """A manifest of a large dataset, without its files; `first` changes its first shard."""
    classes = [f"class {i}" for i in range(num_classes)]
    shards = [
        Shard(
            file=f"train-{i:05d}-of-{num_shards:05d}.tfrecord",
            num_records=10 + i % 2,
            num_bytes=1000 + i,
            sha256="0" * 64,
            classes={classes[(i * 7 + k) % num_classes]: 1 for k in range(10 + i % 2)},
            index=IndexFile("index/a", 1, "0" * 64),
        )
        for i in range(num_shards)
    ]
    shards[0] = replace(shards[0], **first)
    records = sum(shard.num_records for shard in shards)
    return blank(splits={"train": Split(records, shards)}, classes=classes, listed=records)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "pets & <more>"
    dataset = Dataset(folder, rejects={"truncated": 5, "empty": 1})
    return dataset, *written(dataset)


def test_the_page_has_no_external_resources_and_is_accessible(made):
    dataset, text, page = made
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert {a["href"] for a in page.all("a")} == {f"#{h2['id']}" for h2 in page.all("h2")}
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert "url(" not in text and "@import" not in text
    assert written(dataset)[0] == text
    alternatives = [str(image["alt"]) for image in page.all("img")]
    assert len(alternatives) == 30
    assert all(re.fullmatch(r"(cat|dog): (cat|dog)/\d+\.jpg", words) for words in alternatives)
    assert all(th.get("scope") in ("col", "row") for th in page.all("th"))
    assert len(page.all("table")) == len(page.all("figcaption")) > 0


def test_the_page_says_what_the_manifest_records(made):
    dataset, _, page = made
    for expected in (
        "pets & <more>",
        "30of 36 listed",
        "The shards of a split differ by at most one record.",
        "turned upright as their EXIF orientation says",
        'it is <truncated> & "bad"',
        "cat/bad2.jpg",
        dataset.manifest["fingerprint"],
    ):
        assert expected in page.text, expected
    assert "cat/bad3.jpg" not in page.text  # Three examples of a reason are enough.


def test_hostile_names_are_escaped(tmp_path):
    dataset = Dataset(tmp_path / "data", classes=HOSTILE[:3], shards={"train": 2})
    dataset.manifest["classes"].append(HOSTILE[3])
    dataset.manifest["options"] = {"input": HOSTILE[0], "seed": HOSTILE[3]}
    dataset.manifest["rejects"] = {HOSTILE[0]: 1}
    line = json.dumps(REJECT | {"reason": HOSTILE[0], "key": HOSTILE[1], "message": HOSTILE[3]})
    (tmp_path / "data" / "quarantine" / "rejects.jsonl").write_text(line)
    text, page = written(dataset)
    assert "<script" not in text
    assert not page.all("script")
    for name in [*HOSTILE[:3], "no\ufffdutf?"]:
        assert name in page.text
    assert any(HOSTILE[1] in str(image["alt"]) for image in page.all("img"))


def test_boxes_are_drawn_unless_the_numbers_of_sides_differ(tmp_path):
    sides = {"min": [0.25, 0.5], "max": [0.75, 1.0]}
    boxes = {name: sides[name[-3:]] for name in BOX_FEATURES}
    dataset = Dataset(tmp_path, shards={"train": 1}, per_shard=3)
    (name,) = dataset.splits["train"]
    white = {"image/encoded": [saved(Image.new("RGB", (64, 64), "white"), quality=95)]}
    for i, more in enumerate([boxes, boxes | {BOX_FEATURES[0]: [0.25]}, {}]):
        features = decode_example(dataset.payloads[name][i]) | white | more
        dataset.payloads[name][i] = encode_example(features)
    dataset.write_shard(name)
    found = [str(image["src"]).partition(",")[2] for image in written(dataset)[1].all("img")]
    pictures: Any = [opened_bytes(base64.b64decode(content)) for content in found]
    with_boxes, odd, without = pictures
    assert with_boxes.getpixel((16, 24))[2] < 140 and min(with_boxes.getpixel((8, 8))) > 240
    assert odd.tobytes() == without.tobytes()


@pytest.mark.parametrize(
    ("manifest", "said", "unsaid"),
    [
        (many(2, 4), ["at most one record"], ["Warnings"]),
        (many(2, 4, num_records=12), [], ["at most one record"]),
        (replace(many(2, 4), warnings=[WARNING]), ["Warnings", WARNING], []),
        (replace(many(2, 1), inputs=INPUTS), ["/sets/a", "1,234", "f" * 64, "not a dataset"], []),
        (many(2500, 3), ["The first 2,000 of 2,500 classes", "class 1999"], []),
    ],
)
def test_the_page_omits_sections_without_content(manifest, said, unsaid):
    text = Page(page_of("x", manifest, {}, {})).text
    assert all(words in text for words in said) and not any(words in text for words in unsaid)


def test_a_page_of_a_thousand_classes_and_shards_stays_readable():
    text = page_of("x", many(1000, 1024), {}, {})
    page = Page(text)
    assert len(text) < 250_000 and len(page.all("tr")) < 1060
    assert len([td for td in page.all("td") if td.get("class") == "bar"]) == 24
    assert "The 12 smallest classes." in page.text and "All 1,000 classes" in page.text


def test_only_the_first_records_are_read(tmp_path):
    dataset = Dataset(tmp_path, shards={"train": 70, "test": 0}, per_shard=2)
    for name, payloads in dataset.payloads.items():
        (tmp_path / name).write_bytes(framed(payloads[:1]) + b"no record")
    _, page = written(dataset)
    assert len(page.all("img")) == 64 and len(page.all("h3")) == 1
    assert "could not be read" not in page.text


def test_the_page_reports_pictures_that_cannot_be_read(tmp_path):
    dataset = Dataset(tmp_path, shards={"train": 3}, per_shard=4)
    names = dataset.splits["train"]
    (tmp_path / names[0]).unlink()
    dataset.payloads[names[1]][0] = b"\xff no example"
    dataset.write_shard(names[1])
    _, page = written(dataset)
    assert len(page.all("img")) == 4
    assert "8 pictures of the sample could not be read" in page.text


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(0, 100))
def test_quotas_are_complete_and_even(counts, wanted):
    taken = quotas(counts, wanted)
    assert sum(taken) == min(wanted, sum(counts))
    assert all(t <= count for t, count in zip(taken, counts, strict=True))
    unfilled = [t for t, count in zip(taken, counts, strict=True) if t < count]
    assert not unfilled or max(taken) - min(unfilled) <= 1


def test_the_report_command_prints_the_path(tmp_path, capsys):
    Dataset(tmp_path, rejects={"truncated": 2, "empty": 1})
    assert main([str(tmp_path)]) == 0
    page = tmp_path / "report" / "index.html"
    assert [*page.parent.iterdir()] == [page]
    (page.parent / "index.html.tmp-863179ee").touch()  # as a killed command leaves it
    assert capsys.readouterr().out == f"wrote {page}\n"
    page.unlink()
    assert ims.report(tmp_path) == str(page) and [*page.parent.iterdir()] == [page]
