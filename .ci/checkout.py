"""The checkout as `complete` looks at it: files, the tokens of their code, things and what they need."""

import importlib
import inspect
import pkgutil
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as types


class Thing(NamedTuple):
    """One of a kind: where it is declared, its name, its spellings in code, what else its needs look at."""

    file: str
    name: str
    spellings: tuple[str, ...] = ()
    more: Any = None


Condition = Callable[[Thing], object]
Need = tuple[Condition, str]
"""What a thing must have, and what to say of one that has it not, with `{t}` and `{stem}` (of its file)."""


def lacking(things: Iterable[Thing], *needs: Need) -> Iterator[str]:
    """A line for each need of each thing that is not met."""
    for thing in things:
        for condition, message in needs:
            if not condition(thing):
                yield f"{thing.file}: {thing.name}: {message.format(t=thing, stem=Path(thing.file).stem)}"


@cache
def every_file() -> tuple[str, ...]:
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-c", "-o", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(name for name in sorted(set(listed.split("\0"))) if Path(name).is_file())


@cache
def files(start: str, end: str = "") -> list[str]:
    return [name for name in every_file() if name.startswith(start) and name.endswith(end)]


@cache
def text(file: str) -> str:
    return Path(file).read_text(encoding="utf-8") if Path(file).is_file() else ""


@cache
def code(*starts: str) -> str:
    """All Python files whose paths begin so, without docstrings and comments."""
    whole = "\n".join(text(file) for start in starts for file in files(start, ".py"))
    return re.sub(r'(?m)^ *"""(?:[^"]|"(?!""))*"""|(?:^|(?<=\s))#.*$', "", whole)


@cache
def tokens(*starts: str) -> frozenset[str]:
    """Words of that code; a hyphen belongs to a word, and attributes begin with a dot as well."""
    return frozenset(re.findall(r"[\w-]+", code(*starts)) + re.findall(r"\.\w+", code(*starts)))


@cache
def test_modules() -> tuple[str, ...]:
    return tuple(file for file in files("tests/", ".py") if Path(file).name.startswith("test_"))


def is_tested(thing: Thing) -> bool:
    """A test module names it, by a spelling where it has some."""
    return not tokens(*test_modules()).isdisjoint(thing.spellings or (thing.name,))


def tested(where: str) -> Need:
    return is_tested, f"no test names it; add one to {where}"


def file_of(kind: Any) -> str:
    return Path(inspect.getsourcefile(kind) or "").relative_to(Path.cwd()).as_posix()


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(module.name)


def row(file: str, *parts: str) -> Condition:
    """A row of a table in the file has all these parts, which may name `{t}`."""

    def fulfilled(thing: Thing) -> bool:
        wanted = [part.format(t=thing) for part in parts]
        rows = (line for line in text(file).splitlines() if line.startswith("| "))
        return any(all(part in line for part in wanted) for line in rows)

    return fulfilled


def holds(file: str, content: str) -> Condition:
    """The file, which is there, has this content; both may name `{t}`."""
    return lambda t: Path(file.format(t=t)).is_file() and content.format(t=t) in text(file.format(t=t))


def token(*starts: str, form: str = ".{t.spellings[0]}") -> Condition:
    """The code below these paths has the word."""
    return lambda t: form.format(t=t) in tokens(*starts)


def fields(struct: Any, path: str, *, lists: bool) -> Iterator[Thing]:
    """Every field of a struct and of the structs in it, by its path in a document."""
    for field in msgspec.structs.fields(struct):
        here = f"{path}.{field.encode_name}".lstrip(".")
        yield Thing(file_of(struct), here, (field.name, field.encode_name), struct)
        for inner in structs(types.type_info(field.type), lists=lists):
            yield from fields(inner, here, lists=lists)


def structs(kind: types.Type, *, lists: bool) -> Iterator[type]:
    """The structs that a value of this type holds."""
    match kind:
        case types.StructType(cls=cls) if cls.__name__ not in ("Unavailable", "Selector"):
            yield cls
        case types.UnionType(types=ways):
            for way in ways:
                yield from structs(way, lists=lists)
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item) if lists:
            yield from structs(item, lists=lists)


def at(document: Any, path: str) -> Any:
    """The value at a path; None if there is none."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document
