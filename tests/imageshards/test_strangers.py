import contextlib
import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imageshards as ims
from beam_pipeline.inputs.datasets import open_inputs
from beam_pipeline.inputs.listing import list_records, shards_to_list
from beam_pipeline.options import BuildOptions, CopiedInput, InputOptions
from imageshards.errors import UserError
from imageshards.example import encode_example
from imageshards.manifest import digest_of
from imageshards.reporting.page import write_report
from imageshards.verification.command import json_of, verify
from tests.support.dataset_factory import Dataset, features_of, framed
from tests.support.manifests import shards_of, write_manifest
from tests.support.strangers import SENTINEL, changed
from tests.support.trainer_data import ROLES

VALUES = [None, [], [b""], [b"\xff"], [1], [-1], [2**62], [1.5], [1, 2], [b"a", b"b"]]


def check(directory):
    verdict = verify(directory, workers=1)
    str(verdict).encode()
    json_of(verdict).encode()


def report(directory):
    write_report(directory, ims.load_manifest(directory, complete=True, adopted=True))


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


COMMANDS: list[Callable[[str], Any]] = [check, report, read, train, build]


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


def works_or_says_why(made):
    with only_below(made.directory):
        for command in COMMANDS:
            try:
                command(str(made.directory))
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
    works_or_says_why(made)


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
        works_or_says_why(made)
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
        works_or_says_why(made)
    finally:
        made.write_shard(name)
