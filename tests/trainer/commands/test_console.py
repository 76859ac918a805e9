"""What all commands of the trainer share."""

from __future__ import annotations

import pytest

from imageshards.errors import UserError
from trainer.commands import console


def test_a_user_error_is_one_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def mistaken() -> int:
        raise UserError("--x received 1; expected 2.")

    def pressed() -> int:
        raise KeyboardInterrupt

    assert console.run("program", lambda: 7) == 7
    assert console.run("program", mistaken) == 2
    assert capsys.readouterr().err == "program: --x received 1; expected 2.\n"
    assert console.run("program", pressed, "stopped halfway") == 130
    assert capsys.readouterr().err == "program: stopped halfway.\n"
