"""Private names of Keras are used in the few files that ARCHITECTURE.md names."""

from __future__ import annotations

import ast
import pathlib
import re

import trainer

TRAINER = pathlib.Path(trainer.__file__).parent
ARCHITECTURE = TRAINER.parent / "ARCHITECTURE.md"

USERS = {
    "models/keras_internals.py",
    "models/step.py",
    "training/loop.py",
    "training/saved_run.py",
}
# Of the standard library.
PUBLIC = {"_exit", "_replace", "_register_atexit"}


def own_names(path: pathlib.Path) -> set[str]:
    """The names that a file defines."""
    return {
        name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if not (isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load))
        for field in ("name", "attr", "id", "arg")
        if isinstance(name := getattr(node, field, None), str)
    }


def foreign_names(path: pathlib.Path) -> set[str]:
    """Private attributes, and texts that could be names of such, that no file defines."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    own = own_names(path)
    if (base := path.with_name("evaluation.py")).exists():  # its classes are extended
        own |= own_names(base)
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return {name for name in used - own - PUBLIC if re.fullmatch(r"_[a-z]\w+", name)}


def test_private_names_of_keras_are_used_where_the_architecture_says() -> None:
    found = {
        path.relative_to(TRAINER).as_posix(): names
        for path in TRAINER.rglob("*.py")
        if (names := foreign_names(path))
    }
    assert found.keys() == USERS, f"put such uses into keras_internals.py: {found}"
    told = ARCHITECTURE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in told for name in USERS)
