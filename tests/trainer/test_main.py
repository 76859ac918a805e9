import hashlib
import json
import pathlib
import signal
from typing import Any

import pytest

from tests.support.commands import Command, run_forked, wait_until
from tests.support.trainer_data import make_dataset
from trainer.__main__ import main
from trainer.serving import model_file

pytestmark = pytest.mark.process

KEYS = ["epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy"]
KEYS += ["images_per_second", "wait_fraction", "learning_rate"]
SMALL = ["--model", "tests.support.tiny_models:dense"]
FILES = [".run", "checkpoints", "metrics.jsonl", "model.keras", "report", "weights.sha256"]


def _metrics(output: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    counts = {"train": 150, "validation": 27}
    return make_dataset(tmp_path_factory.mktemp("set"), counts, size_px=((32, 32),))


def test_an_output_that_cannot_be_written_is_one_sentence(shapes, capsys):
    assert main(["--data", str(shapes), "--output", str(shapes / "manifest.json")]) == 2
    out, err = capsys.readouterr()
    assert "cannot be written (Not a directory); choose another" in err and not out
    assert err.startswith("imageshards train: ") and err.count("\n") == 1


@pytest.mark.slow
def test_two_replicas_train_and_leave_a_model(shapes: pathlib.Path, tmp_path: pathlib.Path) -> None:
    flags = ["--data", shapes, "--epochs", 3, "--batch_size", 16, "--seed", 2, "--augment", "none"]
    ran = run_forked("trainer", *flags, "--replicas", 2, "--output", tmp_path)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    assert "2 replicas" in ran.stdout and "28 steps, 3 epochs" in ran.stdout
    assert "hint: with fewer than 1,000 records per class, pretrained" in ran.stdout
    for file in ("model.keras", "metrics.jsonl", "report/index.html"):
        assert str(tmp_path / file) in ran.stdout and (tmp_path / file).is_file()
    found = _metrics(tmp_path)
    best = min(found, key=lambda record: record["val_loss"])
    file = "model.keras" if best is found[-1] else "best.keras"
    figures = f"accuracy {best['val_accuracy']:.3f}, loss {best['val_loss']:.4f}"
    said = f"\nvalidation {figures}: {file}, the model after epoch {best['epoch']} of 3\n"
    assert said in ran.stdout
    assert "bound: the model waited" in ran.stdout.splitlines()[-1]
    assert set(FILES) <= {p.name for p in tmp_path.iterdir()} <= {*FILES, "best.keras"}
    assert [list(record) for record in found] == [KEYS] * 3
    assert [(record["epoch"], record["step"]) for record in found] == [(1, 9), (2, 18), (3, 28)]
    assert found[2]["loss"] < found[0]["loss"] and found[0]["images_per_second"] > 0
    saved = model_file.find_model(str(tmp_path))
    network, card = saved.load(), saved.card
    assert card.classes == ("circle", "square", "triangle") and card.step == 28
    weights = b"".join(w.tobytes() for w in network.get_weights())
    told = f"{hashlib.sha256(weights).hexdigest()}  model.keras"
    assert (tmp_path / "weights.sha256").read_text().strip() == told


@pytest.mark.slow
def test_a_second_run_is_refused_and_ctrl_c_saves_and_says_how_to_resume(shapes, tmp_path):
    flags = ["--data", str(shapes), "--output", str(tmp_path), "--epochs", "100000", *SMALL]
    flags += ["--augment", "none"]
    ran = Command("trainer", "trainer", *flags)
    figures = tmp_path / "metrics.jsonl"
    wait_until(lambda: figures.exists() and figures.read_text().count("\n") > 1, ran)
    second = run_forked("trainer", *flags)
    assert second.returncode == 2
    assert f"is in use by another job (process {ran.pid} on" in second.stderr
    ran.send_signal(signal.SIGINT)
    _, err = ran.communicate()
    assert "SIGINT: saved; run the same command again to resume after step " in err
    assert "Traceback" not in err
    assert ran.wait() == 130
    assert len(_metrics(tmp_path)) >= 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [".run", "checkpoints", "metrics.jsonl"]
