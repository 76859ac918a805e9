"""A new run is not begun among files of the user's own; a run's own folder is."""

from __future__ import annotations

import pathlib

import pytest

from imageshards.errors import UserError
from trainer.training.output_folder import check_only_ours


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), ""),
        ((".gitkeep", "train.log", "job.out", "report", "cache"), ""),
        (("notes.txt", "metrics.jsonl"), ""),  # a run has begun there
        (("notes.txt",), "holds 1 file or folder of your own ('notes.txt');"),
        (("a", "b", "c", "d", "report"), "holds 4 files or folders of your own ('a', 'b', 'c' and "
                                         "1 more); expected a new or empty folder"),
    ],
)  # fmt: skip
def test_files_of_the_users_own_are_not_mixed_with_a_run(
    tmp_path: pathlib.Path, names: tuple[str, ...], shown: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    if not shown:
        check_only_ours(str(tmp_path))
        return
    with pytest.raises(UserError) as caught:
        check_only_ours(str(tmp_path))
    assert shown in str(caught.value) and "--overwrite" in str(caught.value)


def test_a_folder_that_is_not_there_is_new(tmp_path: pathlib.Path) -> None:
    check_only_ours(str(tmp_path / "new"))
