import math
import pathlib
from typing import Any

import pytest
from tensorflow.core.util import event_pb2

import imageshards as ims
from imageshards.example import decode_example, encode_example
from imageshards.tfrecord import read_records
from tests.support.html_page import Page
from tests.support.runs import metrics, train_flags
from tests.support.trainer_data import make_dataset, rewrite_shard
from trainer.__main__ import main as train

pytestmark = pytest.mark.slow

MODELS = "tests.support.tiny_models"
RATE = ("--learning_rate", 0.01)
ZEROS = ["--model", f"{MODELS}:plain", "--callbacks", f"{MODELS}:zeros_at_the_end"]


@pytest.fixture(scope="module")
def misleading(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Validation has the pictures of training under other labels: the more a model learns, the
    higher is its `val_loss`.
    """
    counts = {"train": 24, "validation": 24}
    path = make_dataset(tmp_path_factory.mktemp("set"), counts, size_px=((12, 12),))
    for shard in sorted(path.glob("train-*.tfrecord")):
        payloads = []
        for record in read_records(str(shard)):
            features = {**decode_example(record.payload)}
            features["image/class/label"] = [(int(features["image/class/label"][0]) + 1) % 3]
            payloads.append(encode_example(features))
        rewrite_shard(path, shard.name.replace("train", "validation"), payloads)
    return path


def _evaluated(output: pathlib.Path, data: pathlib.Path) -> tuple[Any, Page]:
    report = output.parent / "evaluated"
    found = ims.evaluate(output, data, report=report)
    return found, Page((report / "index.html").read_text("utf-8"))


def _shown(page: Page) -> list[Any]:
    """The confusion matrix of a page, and the examples that it shows."""
    cells = [attrs["title"] for attrs in page.all("td") if "title" in attrs]
    return [*cells, *((attrs["alt"], attrs["src"]) for attrs in page.all("img"))]


def _check(output: pathlib.Path, printed: str, epochs: str, found: Any, expected: Page) -> None:
    figures = f"validation accuracy {found['accuracy']:.3f}, loss {found['loss']:.4f}"
    assert f"\n{figures}: {epochs}\n" in printed
    page = Page((output / "report" / "index.html").read_text("utf-8"))
    assert f"This page describes {epochs}, which evaluate, predict and export take." in page.words
    assert _shown(page) == _shown(expected)


@pytest.mark.parametrize(
    "more",
    [["--label_smoothing", 0.1, "--optimizer", "adam", "--ema", 0.5], ZEROS],
    ids=["smoothed labels and averaged weights", "callbacks"],
)
@pytest.mark.one_row
def test_the_page_and_the_last_line_describe_the_best_model(misleading, tmp_path, capsys, more):
    output = tmp_path / "run"
    flags = train_flags(misleading, output, "--epochs", 4, *RATE, *more)
    assert train(flags) == 0
    printed = capsys.readouterr().out
    best, served = _best(output)
    found, page = _evaluated(output, misleading)
    assert found["step"] == best["step"]
    assert found["loss"] == pytest.approx(best["val_loss"], rel=1e-5)
    _check(output, printed, served, found, page)
    (output / "report" / "index.html").unlink()
    assert train(flags) == 0
    _check(output, capsys.readouterr().out, served, found, page)


def _best(output: pathlib.Path) -> tuple[Any, str]:
    """The epoch with the lowest val_loss, none of the last ones, and how its model is called."""
    best = min(metrics(output), key=lambda record: record["val_loss"])
    assert best["epoch"] < 4 and (output / "best.keras").is_file()
    return best, f"best.keras, the model after epoch {best['epoch']} of 4"


def test_without_a_better_epoch_they_describe_the_last_model(shapes, tmp_path, capsys):
    output = tmp_path / "run"
    output.mkdir()
    (output / ".run").touch()
    (output / "best.keras").write_text("of a shorter run that this one went on with")
    assert train(train_flags(shapes, output, "--epochs", 1, *RATE, *ZEROS)) == 0
    printed = capsys.readouterr().out
    found, page = _evaluated(output, shapes)
    assert found["loss"] == pytest.approx(math.log(3))
    _check(output, printed, "model.keras, the model after epoch 1 of 1", found, page)


def test_a_compiled_models_figures_belong_to_the_best_epoch(misleading, tmp_path, capsys):
    flags = train_flags(misleading, tmp_path, "--epochs", 4, "--model", f"{MODELS}:compiled")
    assert train(flags) == 0
    best, served = _best(tmp_path)
    figures = f"validation accuracy {best['val_accuracy']:.3f}, loss {best['val_loss']:.4f}"
    assert f"\n{figures}: {served}\n" in capsys.readouterr().out


def test_a_functional_model_brings_its_loss_metrics_and_optimizer(shapes, tmp_path, capsys):
    flags = train_flags(shapes, tmp_path, "--model", f"{MODELS}:compiled", "--callbacks")
    flags += [f"{MODELS}:callbacks", "--epochs", "9"]
    assert train(flags) == 0
    names = "'accuracy', 'images_per_second', 'loss', 'val_accuracy', 'val_loss', 'wait_fraction'"
    assert f"enough: [{names}]" in capsys.readouterr().out
    found = metrics(tmp_path)
    # The second epoch's steps were taken before a callback lowered the rate.
    assert [r["learning_rate"] for r in found] == pytest.approx([0.01, 0.01])
    assert len(found) == 2 and 0 < found[1]["loss"] < 2 and 0 <= found[1]["val_accuracy"] <= 1
    # The callback's word is remembered: the same command has nothing left to do.
    assert train(flags) == 0
    printed, told = capsys.readouterr()
    assert "enough" not in printed and "start over with --overwrite\n" in told
    assert "a callback ended this run after step 5 of 24, so nothing is trained; " in told
    assert metrics(tmp_path) == found


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--metrics", "top_5"], "--metrics received 'top_5'; expected top5 or auc or f1"),
        (["--callbacks", f"{MODELS}:broken_callbacks"], "returned str; expected a list of"),
        (["--callbacks", f"{MODELS}:calbacks"], "has no function 'calbacks'; expected one of"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(shapes, tmp_path, flags, sentence, capsys):
    assert train(train_flags(shapes, tmp_path, *flags)) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1, said


def test_settings_are_refused_before_overwrite_removes_a_run(shapes, tmp_path, capsys):
    for name in (".run", "metrics.jsonl"):
        (tmp_path / name).touch()
    more = ("--overwrite", "--weights", tmp_path, "--freeze", "all", "--unfreeze_after", 9)
    assert train(train_flags(shapes, tmp_path, *more)) == 2
    assert "--unfreeze_after received 9" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").exists()


def _curves(output: pathlib.Path) -> dict[str, list[int]]:
    """The steps of each curve of `tensorboard/`, whatever number of files they are in."""
    found: dict[str, list[int]] = {}
    for file in sorted((output / "tensorboard").rglob("events*")):
        for record in read_records(str(file)):
            event = event_pb2.Event.FromString(record.payload)
            for value in event.summary.value:
                found.setdefault(f"{file.parent.name}/{value.tag}", []).append(event.step)
    return found


@pytest.mark.long
def test_tensorboard_gets_each_epoch_of_a_resumed_run_once(shapes, tmp_path, capsys):
    flags = [*train_flags(shapes, tmp_path), "--tensorboard"]
    for epochs in (2, 3):
        assert train([*flags, "--epochs", str(epochs)]) == 0
    curves = _curves(tmp_path)
    assert curves["train/epoch_loss"] == curves["validation/epoch_accuracy"] == [0, 1, 2]
    assert f"tensorboard --logdir {tmp_path}/tensorboard\n" in capsys.readouterr().out
    assert train([*flags, "--epochs", "1", "--overwrite"]) == 0
    assert _curves(tmp_path)["train/epoch_loss"] == [0]
    assert train([*train_flags(shapes, tmp_path), "--epochs", "1", "--overwrite"]) == 0
    assert not (tmp_path / "tensorboard").exists()
    assert train([*train_flags(shapes, "gs://bucket/run"), "--tensorboard"]) == 2
    assert "--tensorboard received True with --output gs://" in capsys.readouterr().err
