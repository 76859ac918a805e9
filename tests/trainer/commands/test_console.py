import signal

from trainer.commands import run


def test_error_caused_by_ctrl_c_becomes_keyboard_interrupt(capsys):
    def pressed() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as e:
            raise RuntimeError("CancelledError: the step was interrupted") from e
        return 0

    before = signal.getsignal(signal.SIGINT)
    assert run("program", pressed, "stopped halfway") == 130
    assert capsys.readouterr().err == "program: stopped halfway.\n"
    assert signal.getsignal(signal.SIGINT) is before
