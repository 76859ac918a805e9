import dataclasses
import pathlib
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refused
from trainer.cluster.hosts import Hosts
from trainer.config import OptimizerConfig, ReadConfig, RunConfig
from trainer.reader.batches import open_data
from trainer.strengths import Augment
from trainer.training.open_run import Epochs, Run, check_same
from trainer.training.output_folder import begin_run
from trainer.training.run import begin, settings_of


def _config(shapes: pathlib.Path, read: dict[str, Any], **changes: Any) -> RunConfig:
    given: dict[str, Any] = {"batch_size": 4, "augment_on": "host", **read}
    return RunConfig(ReadConfig(str(shapes), **given), "out", **changes)


def _settings(shapes, read=None, **changes):
    config = _config(shapes, read or {}, **changes)
    return settings_of(config, open_data(config.read)[0])


def _begun(config: RunConfig, *hosts: Any) -> Run:
    return begin(config, *open_data(config.read), tf.distribute.get_strategy(), *hosts)


@given(
    st.integers(1, 64).flatmap(lambda b: st.tuples(st.integers(b, 5000), st.just(b))),
    st.integers(1, 3000),
)
def test_every_epoch_ends_with_its_last_whole_batch(counts: tuple[int, int], total: int) -> None:
    records, batch = counts
    epochs = Epochs(records, batch, total)
    ends = [epochs.end(epoch) for epoch in range(epochs.count)]
    assert ends == sorted(set(ends)) and ends[0] > 0
    assert all(0 <= n * records - end * batch < batch for n, end in enumerate(ends[:-1], 1))
    assert ends[-1] == total <= epochs.count * records // batch


def test_a_run_is_as_long_as_its_epochs_or_steps(shapes):
    data = open_data(_config(shapes, {}).read)[0]
    assert Epochs.of(data, 3) == Epochs(22, 4, 16)
    assert Epochs.of(data, 3, 17) == Epochs(22, 4, 17, by_steps=True)
    epochs = Epochs.of(data, 3, 11, steps_per_epoch=3)
    assert [epochs.end(epoch) for epoch in range(epochs.count)] == [3, 6, 9, 11]


# Where files are, how long a run is, what goes wrong, and all that only changes the speed; `data`
# has the rest of what is read from it, boxes add theirs.
MAY_DIFFER = """
    allow_overlap cache_folder callbacks checkpoint_steps cluster cluster_port cluster_timeout
    dry_run epochs eval_crop keep_checkpoints min_box_visibility output overwrite read
    records_root replicas skip_broken target_kind tensorboard threads validation_split
"""


def test_every_other_setting_must_be_the_same(shapes):
    kinds = ReadConfig, RunConfig, OptimizerConfig
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    settings = _settings(shapes, optimizer=OptimizerConfig(schedule="cosine"))
    assert names - settings.keys() == {*MAY_DIFFER.split()}


def test_settings_that_change_no_step_may_differ(shapes):
    for read, changes in (
        ({"augment": "none"}, {"cache": "pixels"}),
        ({"augment_on": "device"}, {"cache": "pixels"}),
    ):
        check_same("out", _settings(shapes, read), _settings(shapes, {**read, **changes}))
    check_same("out", _settings(shapes), _settings(shapes, {"image_size": (12, 12)}))


_NEVER = [
    ({"read": {"classes": ("square", "circle")}}, "classes square,circle"),
    ({"read": {"image_size": (8, 16)}}, "image_size 8,16"),
    ({"read": {"cache": "pixels"}}, "cache pixels"),
    ({"read": {"augment": "none"}}, "augment none"),
    ({"read": {"augment": Augment.of("light", crop=(0.08, 1))}}, "augment crop"),
    ({"weights": "imagenet", "freeze": 20}, "freeze 20"),
    ({"optimizer": OptimizerConfig(learning_rate=0.5)}, "learning_rate 0.5"),
    # Its rate depends on the length of the run.
    ({"optimizer": OptimizerConfig(schedule="cosine"), "epochs": 6}, "steps 33"),
]


@pytest.mark.parametrize(("changes", "told"), _NEVER, ids=[told for _, told in _NEVER])
def test_a_changed_setting_is_refused_by_its_flag(shapes, changes, told):
    begun = _settings(shapes)
    argument, value = told.split()
    if argument == "freeze":
        begun = _settings(shapes, weights="imagenet", freeze="all", unfreeze_after=2)
    if argument == "steps":
        begun = _settings(shapes, optimizer=changes["optimizer"])
    with refused(argument, f"{argument} received {value}", "'out'", "overwrite=True"):
        check_same("out", begun, _settings(shapes, **changes))


def test_other_data_and_incompatible_runs_of_older_trainers_are_refused(shapes):
    settings = _settings(shapes)
    with refused("output", "other data"):
        check_same("out", settings, settings | {"classes": ["oval"], "data": "another"})
    older = {name: value for name, value in settings.items() if name != "order_version"}
    with refused("output", "version 1", "overwrite=True") as caught:
        check_same("out", older | {"augment": "light"}, settings)
    assert "order_version" not in str(caught.value)


def test_overwriting_reads_nothing_of_the_old_run(shapes, tmp_path):
    """Its list of broken records may be of other data, or no list at all."""
    broken = tmp_path / "broken.json"
    broken.write_text("no list")
    (tmp_path / ".run").touch()
    config = _config(shapes, {"skip_broken": 1})
    config = dataclasses.replace(config, output=str(tmp_path))
    with begin_run(str(tmp_path), overwrite=True):
        run = _begun(config)
    assert run.broken.found == [] and not broken.exists()


def test_hosts_with_other_data_are_refused(shapes, monkeypatch):
    hosts = Hosts(("a:1", "b:1"))
    other = {"The fingerprint of the data": "other"}
    monkeypatch.setattr(hosts, "gather", lambda name, value: [value, other])
    config = _config(shapes, {})
    with refused("", "fingerprint of the data is other on b:1"):
        _begun(config, hosts)
