"""Documents with strange values in them: what a newer probe, a broken driver or a hostile pod might send."""

import random
from typing import TypeVar

import msgspec

from fuzz.mutation import ODD
from support.api_server import copied
from support.objects import paths_of

Document = TypeVar("Document", bound=msgspec.Struct)


def disturbed(whole: Document, *, seed: int, times: int) -> Document:
    """The document with `times` values replaced by strange ones that its types allow."""
    chance = random.Random(seed)
    document = msgspec.json.decode(msgspec.json.encode(whole))
    paths = paths_of(document)
    for _ in range(times):
        path = chance.choice(paths)
        target = document
        for key in path[:-1]:
            target = target[key]
        before, target[path[-1]] = target[path[-1]], copied(chance.choice(ODD))
        try:
            msgspec.convert(document, type(whole))
            paths = paths_of(document)
        except msgspec.ValidationError:
            target[path[-1]] = before
    return msgspec.convert(document, type(whole))
