"""Runs a script that is given as text: `python -m tests.support.script TEXT ARGUMENTS`."""

import sys
import textwrap

from tests.support.commands import run_forked


def run_script(text: str, *arguments: object) -> str:
    """What a script prints in a process that has imported TensorFlow; it must succeed."""
    done = run_forked("tests.support.script", text, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    exec(compile(textwrap.dedent(sys.argv.pop(1)), "a script", "exec"), {"__name__": "__main__"})  # noqa: S102
