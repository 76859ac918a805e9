"""The Python of one page: runs its blocks one after the other, in one namespace.

    python -m tests.documentation.python_session PAGE

A line of the input is a block, as JSON: number of its first line, its text, and a file for what
it prints. The answer is a line of JSON: null, the traceback of what was raised, or the name of a
package that is not installed.
"""

import json
import os
import sys
import traceback
import types
from typing import Any


def run_block(page: str, line: int, source: str, namespace: dict[str, Any]) -> dict[str, str]:
    """Runs a block; what went wrong, if anything.

    Lines of a traceback are those of the page.
    """
    try:
        exec(compile("\n" * (line - 1) + source, page, "exec"), namespace)  # noqa: S102
    except BaseException as e:  # noqa: BLE001 – also SystemExit and KeyboardInterrupt
        entries = e.__traceback__ and e.__traceback__.tb_next
        error = {"error": "".join(traceback.format_exception(type(e), e, entries))}
        if isinstance(e, ModuleNotFoundError):
            error["missing"] = e.name or ""
        return error
    return {}


def main(page: str) -> None:
    blocks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    for text in blocks:
        line, source, printed = json.loads(text)
        log = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        answer = run_block(page, line, source, main_module.__dict__)
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
