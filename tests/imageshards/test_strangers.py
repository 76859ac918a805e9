import contextlib
import copy
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imageshards as ims
from beam_pipeline.inputs.datasets import list_records, open_inputs, shards_to_list
from beam_pipeline.options import BuildOptions, CopiedInput, InputOptions
from imageshards.adoption.command import adopt
from imageshards.errors import UserError
from imageshards.example import encode_example
from imageshards.manifest.file import digest_of
from imageshards.verification.command import json_of, verify
from tests.support.dataset_factory import Dataset, described, features_of, framed, jpeg
from tests.support.errors import refused
from tests.support.manifests import shards_of, write_manifest
from tests.support.strangers import SENTINEL, changed
from tests.support.trainer_data import ROLES

SHARED = [HealthCheck.function_scoped_fixture]
VALUES: list[Any] = [None, [], [b""], [b"\xff"], [1], [-1], [2**62], [1.5], [1, 2], [b"a", b"b"]]


def check(directory):
    verdict = verify(directory, workers=1)
    str(verdict).encode()
    json_of(verdict).encode()


def report(directory):
    ims.report(directory)


def duplicates(directory):
    ims.duplicates(directory, workers=1)


def read(directory):
    data = ims.open(directory)
    for split in data.splits:
        # What is documented besides `UserError`.
        with contextlib.suppress(ims.RecordError, FileNotFoundError):
            for _ in data.source(split):
                pass


def train(directory):
    data = ims.open(directory)
    described = data.train(batch_size=2), data.evaluation(batch_size=2)
    repr((data, described, described[0].steps_per_epoch, described[0].class_weight))


def build(directory):
    source = open_inputs(BuildOptions(InputOptions(directory), f"{directory}-new")).source
    copied = source if isinstance(source, CopiedInput) else CopiedInput(**vars(source))
    for path, split, entry in shards_to_list(copied):
        for _ in list_records(path, split, entry):
            pass


COMMANDS: list[Callable[[str], Any]] = [check, report, duplicates, read, train, build]


class _Opened:
    """The paths that are opened, https://docs.python.org/3/library/audit_events.html."""

    paths: set[str] | None = None

    def __call__(self, event, arguments):
        if self.paths is not None and event in ("open", "os.rename", "os.remove", "os.mkdir"):
            self.paths.update(os.path.abspath(a) for a in arguments[:2] if isinstance(a, str))


_opened = _Opened()
sys.addaudithook(_opened)


@contextlib.contextmanager
def only_below(folder):
    """Fails where something beside a folder was opened, made or removed."""
    sentinel = folder.parent / SENTINEL
    sentinel.write_text("mine")
    _opened.paths = set()
    try:
        yield
        paths = _opened.paths
    finally:
        _opened.paths = None
    beside = {path for path in paths if Path(path).is_relative_to(folder.parent)}
    assert not {path for path in beside if not Path(path).is_relative_to(folder)}
    assert not {path for path in paths if path.startswith("/home/u")}
    assert sentinel.read_text() == "mine" and {*folder.parent.iterdir()} == {sentinel, folder}


def works_or_says_why(folder, commands=COMMANDS):
    with only_below(folder):
        for command in commands:
            try:
                command(str(folder))
            except UserError as e:
                assert "\n" not in str(e).strip() and str(e).endswith("."), command


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers") / "set"
    dataset = Dataset(folder, per_shard=2, rejects={"truncated": 1})
    dataset.manifest["inputs"] = [{"path": "p", "num_records": 3, "fingerprint": None}]
    dataset.manifest["warnings"] = ["one"]
    return dataset


def test_commands_work_on_an_unchanged_dataset(made):
    made.save()
    for command in COMMANDS:
        command(str(made.directory))


COLUMNS: dict[str, Any] = {
    "null": pa.nulls(1), "text": ["x"], "name": [f"../{SENTINEL}"], "negative": [-1],
    "large": [2**62], "share": [0.5], "list": [["a"]], "lists": [[None, "a"]], "struct": [{"a": 1}],
}  # fmt: skip


@given(st.data())
@settings(max_examples=40, derandomize=True, deadline=None)
def test_any_index_is_used_or_refused(made, data):
    entry = copy.deepcopy(made.manifest)
    (_, shard), *_ = shards_of(entry)
    path = made.directory / shard["index"]["file"]
    whole = path.read_bytes()
    table = pq.read_table(pa.BufferReader(whole))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, table.num_columns - 1))
        names, column = table.column_names, table.column(place)
        match data.draw(st.sampled_from(["value", "all", "drop", "twice", "rows", "rename"])):
            case "value":
                values = [*column.to_pylist()[:-1], data.draw(st.sampled_from(VALUES[2:]))]
                with contextlib.suppress(pa.ArrowException):
                    table = table.set_column(place, names[place], pa.array(values))
            case "all":
                found = pa.array(COLUMNS[data.draw(st.sampled_from([*COLUMNS]))])
                table = table.set_column(place, names[place], found.take([0] * len(table)))
            case "drop" if table.num_columns > 1:
                table = table.remove_column(place)
            case "twice":
                table = table.append_column(names[place], column)
            case "rows":
                table = table.slice(1)
            case "rename":
                table = table.rename_columns([*names[:place], "x.y", *names[place + 1 :]])
    stream = pa.BufferOutputStream()
    try:
        pq.write_table(table, stream, store_schema=data.draw(st.booleans()))
        content = bytearray(stream.getvalue().to_pybytes())
        if data.draw(st.booleans()):
            content[data.draw(st.integers(4, len(content) - 9))] ^= 0xFF
        path.write_bytes(content)
        shard["index"] |= described(path)
        write_manifest(str(made.directory), entry)
        works_or_says_why(made.directory)
    finally:
        path.write_bytes(whole)


FEATURES = {
    "featuresDict": {
        "features": {
            "image": {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}}},
            "label": {"classLabel": {"numClasses": "2"}},
        }
    }
}
TEMPLATE = "{DATASET}-{SHARD_X_OF_Y}.x"
INFO: dict[str, Any] = {
    "name": "set",
    "fileFormat": "tfrecord",
    "splits": [{"name": "train", "shardLengths": ["2"], "filepathTemplate": TEMPLATE}],
    "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
}


def adopt_and_check(directory):
    adopt(directory)
    assert verify(directory, workers=1).ok


@pytest.fixture
def records(tmp_path):
    """A folder with a file of two records, and their description by TFDS."""
    folder = tmp_path / "set"
    folder.mkdir()
    payloads = [encode_example({"image": jpeg(i), "label": i}) for i in range(2)]
    (folder / "set-00000-of-00001.x").write_bytes(framed(payloads))
    describe(folder, INFO, FEATURES)
    return folder


def describe(folder, info, features):
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(features))


@given(st.data())
@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=SHARED)
def test_any_description_of_tfds_is_used_or_refused(records, data):
    describe(records, data.draw(changed(INFO)), data.draw(changed(FEATURES)))
    works_or_says_why(records, [adopt_and_check])


HOSTILE = {  # a text of the two files → what stands in its place
    "a wide field": (TEMPLATE, "{SHARD_INDEX:>9999999999}"),
    "an attribute": (TEMPLATE, "{DATASET.__class__}"),
    "a command of a terminal": (TEMPLATE, "x\\u001b[2J"),
    "a long name": (TEMPLATE, "x" * 10_000),
    "many shards": ('["2"]', json.dumps(["1"] * 200_000)),
    "a large number": ('["2"]', json.dumps(["9" * 5000])),
    "many classes": ('"2"', '"999999999999"'),
    "many levels": ('{"classLabel"', '{"featuresDict": {"features": {"a":' * 400 + '{"classLabel"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_of_tfds_are_refused_at_once(records, name):
    old, new = HOSTILE[name]
    for path in (records / "dataset_info.json", records / "features.json"):
        text = path.read_text().replace(old, new)
        path.write_text(text + "}}}" * text.count('"a"'))
    with refused("DIR", "is not what TensorFlow Datasets writes"):
        adopt(str(records))


NAMES_OF_FILES = [
    "a.tfrec", "train.tfrec", "val/b.tfrec", "train/val.tfrec", "train_test.tfrec", "a#0.tfrec",
    "x\x1b[2J.tfrec", "line\nbreak.tfrec", "\u202egnp.tfrec", os.fsdecode(b"\xff.tfrec"), " .tfrec",
    "x.tfrec-1-of-2", "x.tfrec-00001-of-00000", "x.tfrec-00000-of-999999999999", "[ab].tfrec",
    "n" * 240 + ".tfrec", f"{'9' * 200}-0-of-{'9' * 40}", "index/a.parquet/a.tfrec",
]  # fmt: skip


@given(st.lists(st.sampled_from(NAMES_OF_FILES), min_size=1, max_size=3, unique=True))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_any_names_of_files_are_used_or_refused(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("names") / "set"
    payloads = [encode_example({"image": jpeg(i), "label": i}) for i in range(2)]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(framed(payloads))
    works_or_says_why(folder, [adopt_and_check, report, duplicates])


TARGETS = [".", "..", "/", "self", f"../../{SENTINEL}", f"../{SENTINEL}", "/dev/zero", "x"]


@given(st.data())
@settings(max_examples=40, derandomize=True, deadline=None)
def test_any_links_are_used_or_refused(tmp_path_factory, data):
    made = Dataset(tmp_path_factory.mktemp("links") / "set", {"train": 1}, per_shard=2)
    names = ["a.tfrec", *(str(p.relative_to(made.directory)) for p in made.directory.rglob("*"))]
    names += ["report", "report/a", "report/b", "index/a", "index/b", "duplicates", ".staging"]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        path = made.directory / name
        if not path.parent.is_dir() or path.parent.is_symlink():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(data.draw(st.sampled_from(TARGETS)))
    works_or_says_why(made.directory)
    (made.directory / "manifest.json").unlink(missing_ok=True)
    with contextlib.suppress(UserError):
        adopt(str(made.directory))


def adopted_from(made):
    found = copy.deepcopy(made.manifest) | {"adopted": ROLES, "files": {}}
    for _, shard in shards_of(found):
        shard["folder"] = ""
    return found


@pytest.mark.parametrize("is_adopted", [False, True], ids=["built", "adopted"])
@given(data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_manifest_is_used_or_refused(made, is_adopted, data):
    manifest = data.draw(changed(adopted_from(made) if is_adopted else made.manifest))
    if isinstance(manifest, dict):
        manifest["digest"] = digest_of(manifest)
    (made.directory / "manifest.json").write_text(json.dumps(manifest))
    works_or_says_why(made.directory)


@pytest.mark.parametrize("name", ["manifest.json", "quarantine/rejects.jsonl", "shard", "index"])
@pytest.mark.parametrize("is_device", [True, False], ids=["device", "FIFO"])
def test_only_regular_files_are_read(made, name, is_device):
    made.save()
    (_, shard), *_ = shards_of(made.manifest)
    names = {"shard": shard["file"], "index": shard["index"]["file"]}
    path = made.directory / names.get(name, name)
    content = path.read_bytes()
    path.unlink()
    path.symlink_to("/dev/zero") if is_device else os.mkfifo(path)
    try:
        works_or_says_why(made.directory)
        with contextlib.suppress(UserError):
            problems = verify(made.directory, workers=1).problems
            assert "(Not a regular file)" in " ".join(problem.message for problem in problems)
    finally:
        path.unlink()
        path.write_bytes(content)


@given(st.data())
@settings(max_examples=30, derandomize=True, deadline=None)
def test_any_record_is_used_or_refused(made, data):
    name = made.splits["train"][0]
    features = features_of(0, 0)
    for _ in range(data.draw(st.integers(1, 2))):
        feature = data.draw(st.sampled_from([*features, "extra"]))
        value = data.draw(st.sampled_from(VALUES))
        features = {key: kept for key, kept in features.items() if key != feature}
        features |= {} if value is None else {feature: value}
    payload = encode_example(features)
    if data.draw(st.booleans()):
        payload = data.draw(st.sampled_from([payload[:-7], b"", b"\xff" * 9, payload[::-1]]))
    content = framed([payload, *made.payloads[name][1:]])
    (made.directory / name).write_bytes(content)
    manifest = copy.deepcopy(made.manifest)
    manifest["splits"]["train"]["shards"][0]["num_bytes"] = len(content)
    write_manifest(str(made.directory), manifest)
    try:
        works_or_says_why(made.directory)
    finally:
        made.write_shard(name)
