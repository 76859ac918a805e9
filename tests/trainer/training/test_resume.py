"""Runs that are killed by real signals resume with the next record, to the same bits."""

import pathlib

import pytest

from tests.support.commands import Command, kill_at, killed_train, run_forked
from tests.support.runs import digest, metrics, train_flags
from tests.support.trainer_data import make_dataset
from trainer.__main__ import main

pytest.importorskip("tensorflow")


def test_a_finished_run_is_unchanged_and_a_longer_one_resumes_from_it(shapes, tmp_path, capsys):
    def train(*more: object) -> tuple[int, str]:
        return main(train_flags(shapes, tmp_path, *more)), "".join(capsys.readouterr())

    assert train("--steps", 7)[0] == 0
    weights = digest(tmp_path)
    code, said = train("--steps", 7)
    assert code == 0 and "all 7 steps are done already" in said
    assert digest(tmp_path) == weights
    # Epochs end with the steps 2, 5, 8: the third one was cut short, and is taken up again.
    code, said = train("--steps", 9)
    assert code == 0 and "resumes after step 7 of 9" in said
    assert [record["step"] for record in metrics(tmp_path)] == [2, 5, 8, 9]
    code, said = train("--steps", 7)
    assert code == 2 and "--steps received 7 (7 steps), but the run has trained 9 steps" in said
    code, said = train("--steps", 9, "--seed", 4)
    assert code == 2 and "--seed received 4, but the run in --output" in said


@pytest.mark.slow
@pytest.mark.long
def test_a_run_killed_around_the_end_of_freezing_ends_up_bit_identical(shapes, tmp_path):
    """Everything trains from the second epoch on; epochs end with the steps 2, 5, 8."""
    assert run_forked("trainer", *train_flags(shapes, tmp_path / "first", "--steps", 1))
    flags = ["--weights", tmp_path / "first" / "model.keras", "--freeze", "all"]
    flags += ["--unfreeze_after", 1, "--optimizer", "adamw", "--weight_decay", 0.1]
    flags += ["--ema", 0.5, "--warmup_steps", 3, "--checkpoint_steps", 1]
    one, killed = (train_flags(shapes, tmp_path / name, *flags) for name in ("one", "killed"))
    ran = run_forked("trainer", *one, "--epochs", 3)
    assert "parameters are frozen until epoch 2" in ran.stdout, ran.stderr
    rates = [record["learning_rate"] for record in metrics(tmp_path / "one")]
    # The second of four steps of the warm-up; a tenth of the whole.
    assert rates == pytest.approx([0.5e-3, 1e-4, 1e-4])
    # In the frozen epoch; in the first step after it, which is lost; within the second epoch.
    for signum, step, code in [("SIGTERM", 1, 143), ("SIGKILL", 2, -9), ("SIGTERM", 2, 143)]:
        ran = killed_train(signum, step, *killed, "--epochs", 2).result()
        assert ran.returncode == code, ran.stderr
    assert "resumes after step 2 of 5" in ran.stdout
    # Made longer: it resumes where the third epoch begins.
    for epochs, resumed in [(2, "step 4 of 5"), (3, "step 5 of 8")]:
        ran = run_forked("trainer", *killed, "--epochs", epochs)
        assert f"resumes after {resumed}" in ran.stdout, ran.stderr
    assert digest(tmp_path / "killed") == digest(tmp_path / "one")
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "more", "said"),
    [
        ("begin", [], "stopped; run the same command again."),
        ("show_first_batch", ["--dry_run"], "stopped; run the same command again."),
        ("fit", [], "stopped before the first checkpoint; run the same command again."),
        ("publish", [], "saved; run the same command again to resume after step 2."),
    ],
    ids=["before a run is open", "dry run", "before the first step", "after the last step"],
)
@pytest.mark.one_row
def test_sigterm_says_what_is_saved(shapes, tmp_path, function, more, said):
    flags = train_flags(shapes, tmp_path, "--steps", 2, *more)
    given = ("trainer.training.run", function, 1, "SIGTERM")
    ran = Command("trainer", "trainer", *flags, before=kill_at, given=given).result()
    assert ran.returncode == 143, ran.stderr
    assert ran.stderr == f"imageshards train: SIGTERM: {said}\n"


@pytest.mark.slow
@pytest.mark.long
def test_sigterm_stops_the_filling_of_a_cache_which_later_continues(tmp_path: pathlib.Path) -> None:
    # A piece is one shard here; what is done is safe after the first piece and the 65th. When the
    # 105th is read, all before the 70th are done, as 32 pieces are read ahead.
    path = make_dataset(tmp_path / "d", {"train": 120}, num_shards=120, size_px=((8, 8),))
    flags = train_flags(path, tmp_path / "run", "--steps", 2, "--threads", 1)
    flags += ["--cache", "pixels", "--cache_folder", str(tmp_path / "cache")]
    given = ("trainer.reader.pieces", "PieceReader.read", 105, "SIGTERM")
    ran = Command("trainer", "trainer", *flags, before=kill_at, given=given).result()
    assert ran.returncode == 143, ran.stderr
    assert "SIGTERM: stopped before the first checkpoint; run the same command" in ran.stderr
    (part,) = (tmp_path / "cache").glob("*/*.part")
    assert (part / "ends").stat().st_size == 65 * 8
    ran = run_forked("trainer", *flags)
    assert ran.returncode == 0 and not part.exists(), ran.stderr
