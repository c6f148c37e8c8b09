"""A JSON document with some of its places changed, as a fuzzer's bytes say: random bytes would rarely be
JSON."""

import contextlib
import json
from typing import Any, Protocol

from support.api_server import copied
from support.objects import paths_of

MAX_EDITS = 6
ODD: list[Any] = [
    *(None, True, 0, 1, -1, 8, 64, 255, 2**31, 2**63 - 1, -(2**63), 2**64, 0.5, -1.5, 1e308),
    *("", " ", "0", "-", "\n", "\x00", "\x1b[2J\x1b]0;x\x07", "\u202e\u2028\ufffe", "é" * 600, "A" * 5_000),
    *("nvlink", "pass", "fail", "gpu-lost", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "soon"),
    *("1e9h", "15m", "101%", "-5%", "nvidia.com/gpu", "kubernetes.io/hostname", "../..", "{0}%s$(x)"),
    *([], {}, [[]], [{}], {"": ""}, {"unavailable": "NotSupported"}, ["\x1b[31m"] * 70),
    *({"rows": 2, "a": [1, 2]}, {"rows": 255}, {"each": [1]}, {"of": [1], "at": [0, None]}),
]


class Choices(Protocol):
    """What decides: atheris' FuzzedDataProvider, or a random generator of the same form."""

    def ConsumeIntInRange(self, low: int, high: int) -> int: ...

    def ConsumeUnicodeNoSurrogates(self, count: int) -> str: ...

    def ConsumeRegularFloat(self) -> float: ...


class Documents:
    def __init__(self, *documents: Any) -> None:
        self._documents = [(json.dumps(document), paths_of(document)) for document in documents]

    def changed(self, choices: Choices) -> Any:
        """One of the documents with up to six changes; those of a place that is gone are left out."""
        text, paths = self._documents[choices.ConsumeIntInRange(0, len(self._documents) - 1)]
        document = json.loads(text)
        for _ in range(choices.ConsumeIntInRange(0, MAX_EDITS)):
            path = paths[choices.ConsumeIntInRange(0, len(paths) - 1)]
            with contextlib.suppress(LookupError, TypeError):
                _edit(document, path, choices)
        return document


def _edit(document: Any, path: tuple[Any, ...], choices: Choices) -> None:
    at = document
    for key in path[:-1]:
        at = at[key]
    key = path[-1]
    match choices.ConsumeIntInRange(0, 7):
        case 0:
            del at[key]
        case 1 if isinstance(at, list):
            at[key:key] = [copied(at[key])] * choices.ConsumeIntInRange(1, 70)
        case 2:
            at[key] = choices.ConsumeUnicodeNoSurrogates(40)
        case 3:
            at[key] = choices.ConsumeIntInRange(-(2**40), 2**40)
        case 4:
            at[key] = choices.ConsumeRegularFloat()
        case 5 if isinstance(at, dict):
            at[choices.ConsumeUnicodeNoSurrogates(20)] = copied(at[key])
        case _:
            at[key] = copied(ODD[choices.ConsumeIntInRange(0, len(ODD) - 1)])


def as_text(document: Any) -> str:
    """The document as JSON, with what Python's writer allows beyond it (NaN)."""
    return json.dumps(document, ensure_ascii=False)
