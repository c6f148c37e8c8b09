"""Refuse names that only this project understands (the glossary is in CONTRIBUTING.md): what Python code
defines, in the files that are named, or all that git tracks."""

import ast
import re
import subprocess
import symtable
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

RETIRED_PARTS = {
    "settled": "decided, up_to_date, headline: say which",
    "leash": "pdeathsig_exec",
    "aside": "background",
    "beside": "background, or what it is",
    "wear": "error counters",
    "wires": "error_counters",
    "extent": "coverage",
    "patience": "retry",
    "tally": "counters",
    "bench": "nccl, or loadtest",
    "benchmark": "nccl, or loadtest",
    "benchmarks": "nccl, or loadtest",
    "benched": "nccl, or loadtest",
    "standin": "simulated_nccl",
}
"""Refused as any part of a name that underscores or capitals separate."""

RETIRED_NAMES = {
    "place": "gpu_index, location or slot",
    "places": "gpu_indices, locations or slots",
    "told": "what the value is: options, message, reading",
    "found": "what the value is: result, finding, match",
    "words": "what the value is: message, text, sentence",
    "said": "what the value is: judgement, output, message",
    "met": "context",
    "ground": "context",
    "held": "what the value is: taints_on_node, labels",
    "around": "what is there: host_tables",
    "blind": "what it cannot do: unreadable",
    "room": "free_slots, or bytes_left",
    "turns": "concurrency",
}

RETIRED_MODULES = {
    "memory": "history, where earlier runs are meant",
    "rows": "rules, gates or counts",
    "notes": "missing_values",
    "ends": "outcomes",
    "gated": "gate_budget",
    "stopping": "stop_operator",
    "utils": "what is in it",
}

MEMORY_OF_GPUS = "rules/memory.py"
"""The one module that is about the memory of GPUs."""


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that the code defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.alias(asname=str() as name):
                yield node.lineno, name


def parts(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def faults(path: Path, text: str) -> Iterator[str]:
    """A line for every retired name in one file: where, what, and which word to take."""
    stem = path.stem
    if stem in RETIRED_MODULES and not path.as_posix().endswith(MEMORY_OF_GPUS):
        yield f"{path}: the module's name {stem!r} is retired: {RETIRED_MODULES[stem]}"
    if not any(map(replacement, symbols(symtable.symtable(text, str(path), "exec")))) and not replacement(
        stem
    ):
        return  # without the costly syntax tree
    for line, name in [(1, stem), *names(ast.parse(text))]:
        if word := replacement(name):
            yield f"{path}:{line}: {name!r} is retired: {word}"


@cache
def replacement(name: str) -> str | None:
    """What to take instead of a retired name; None for others, and for a test's, which is a sentence."""
    if name.startswith("test_"):
        return None
    listed = (RETIRED_PARTS[part] for part in parts(name) if part in RETIRED_PARTS)
    return RETIRED_NAMES.get(name.strip("_").lower()) or next(listed, None)


def symbols(table: symtable.SymbolTable) -> Iterator[str]:
    """Every name in the code, also of what it only uses."""
    yield from table.get_identifiers()
    for inner in table.get_children():
        yield from symbols(inner)


def main(arguments: list[str]) -> int:
    """0 where no retired name is left; prints the others."""
    listed = (
        arguments
        or subprocess.run(
            ["git", "ls-files", "*.py"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
    )
    lines = [
        fault
        for path in map(Path, listed)
        if path.exists()
        for fault in faults(path, path.read_text(encoding="utf-8"))
    ]
    print("\n".join(lines) if lines else f"names: {len(listed)} files, no retired name")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
