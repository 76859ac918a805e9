import pathlib

import pytest

from imageshards.errors import UserError
from tests.support.commands import write_and_die
from trainer.training.output_folder import begin_run, check_only_ours, remove_run


def _make(folder: pathlib.Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), ""),
        ((".gitkeep", "a.log", "job.out", "job.err", "log.txt", "lost+found/x", "cache/x"), ""),
        (("notes.txt", "report/index.html", ".run"), ""),  # a run has begun there
        (("notes.txt", "checkpoints/step-00000004.npz"), ""),
        (("notes.txt",), "('notes.txt')"),
        (("report/thesis.tex",), "('report')"),
        (("checkpoints/mine.h5",), "('checkpoints')"),
        (("model.keras", "metrics.jsonl"), "2 files or folders"),
        (("a", "b", "c", "d"), "and 1 more)"),
    ],
)
def test_foreign_files_are_left_alone(tmp_path, names, shown):
    _make(tmp_path, names)
    if not shown:
        check_only_ours(str(tmp_path))
        return
    with pytest.raises(UserError) as caught:
        check_only_ours(str(tmp_path))
    assert shown in str(caught.value) and "overwrite" not in str(caught.value)
    remove_run(str(tmp_path))  # as `imageshards.fit` may ask for it without the check
    assert all((tmp_path / name).exists() for name in names)


@pytest.mark.process
def test_the_next_run_removes_unfinished_files_of_a_killed_run(tmp_path: pathlib.Path) -> None:
    mine = (".saved/model.keras", "x.tmp-1", "report.tmp", "checkpoints/step-00000004.npz")
    _make(tmp_path, (".run", *mine, ".saving-abc/raw-model.keras"))
    unfinished = ("metrics.jsonl", "checkpoints/step-00000008.npz", "report/index.html", "notes")
    write_and_die(*(tmp_path / name for name in unfinished))
    assert len([*tmp_path.rglob("*.tmp-*")]) == 5
    with begin_run(str(tmp_path), overwrite=False):
        pass
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    (note,) = (path.name for path in tmp_path.glob("notes.tmp-*"))
    assert found == {".run", ".saved", *mine, note}
    _make(tmp_path, ("report/index.html", "model.keras"))
    with begin_run(str(tmp_path), overwrite=True):
        assert not (tmp_path / "model.keras").exists()
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert kept == found - {"checkpoints/step-00000004.npz"}
