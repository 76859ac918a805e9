import os
import signal

import pytest

from trainer.training.signals import Stopped, StopRequest, stopped_by_sigterm


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_recorded_for_the_loop(signum, capsys):
    before = signal.getsignal(signum)
    with StopRequest(lambda: 3) as stop:
        os.kill(os.getpid(), signum)
        assert stop.requested == signum
    assert signal.getsignal(signum) is before
    assert f"{signum.name}: stopping after this step" in capsys.readouterr().err


def test_a_signal_stops_interruptible_work_at_once() -> None:
    with StopRequest(lambda: 3) as stop:
        with pytest.raises(Stopped, match="^SIGTERM: saved; .* after step 3"), stop.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped), stop.interruptible():  # it came before
            raise AssertionError("not reached")


def test_sigterm_outside_a_loop_still_runs_the_clean_up() -> None:
    before = signal.getsignal(signal.SIGTERM)
    told = "^SIGTERM: stopped; run the same command again"
    with pytest.raises(Stopped, match=told), stopped_by_sigterm():
        with StopRequest(lambda: 3):
            os.kill(os.getpid(), signal.SIGTERM)  # the loop's
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_does_not_wait() -> None:
    with StopRequest(lambda: 3):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
