"""Puts a mutant into code that is loaded, so that one process serves every mutant as a fork.  What a module
does while it is imported cannot be changed so: such a mutant needs a process of its own."""

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

IS_FUNCTION = 0x2
"""CO_NEWLOCALS: code of a function, and of no module or class."""


def patched(path: Path, new: str) -> bool:
    """Whether the text `new` of the file is in force now; if not, nothing was changed."""
    before, after = (compile(text, path, "exec") for text in (path.read_text("utf-8"), new))
    pairs = list(_differing(before, after))
    if not pairs or None in pairs:
        return False
    changes = [(loaded().get((str(path), old), []), code) for old, code in filter(None, pairs)]
    if not all(functions for functions, _ in changes):
        return False
    if any(_keeps_old(str(path), old, new) for old, new in filter(None, pairs)):
        return False
    for functions, code in changes:
        for function in functions:
            function.__code__ = code
    return True


@cache
def loaded() -> dict[tuple[str, CodeType], list[FunctionType]]:
    """All functions that there are, by file and code: two files may have equal code, closures share it."""
    functions: dict[tuple[str, CodeType], list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            functions.setdefault((one.__code__.co_filename, one.__code__), []).append(one)
    return functions


def _keeps_old(path: str, old: CodeType, new: CodeType) -> bool:
    """Whether a function is loaded that was made in this one, and that would go on with its old code."""
    before, after = _inner(old), _inner(new)
    if len(before) != len(after):
        return any((path, one) in loaded() for one in before)
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if _body(one) != _body(other)]
    return any((path, one) in loaded() or _keeps_old(path, one, other) for one, other in pairs)


def _differing(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType] | None]:
    """Functions whose code differs, old and new; None for a difference that no function holds."""
    if _body(old) != _body(new):
        yield (old, new) if old.co_flags & IS_FUNCTION and old.co_freevars == new.co_freevars else None
        return
    for before, after in zip(_inner(old), _inner(new), strict=True):
        yield from _differing(before, after)


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _body(code: CodeType) -> tuple[object, ...]:
    """What the code itself does, without its lines; of functions also what is defined in them."""
    inner = [_body(one) for one in _inner(code)] if code.co_flags & IS_FUNCTION else len(_inner(code))
    constants = [(type(one), repr(one)) for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants, inner
