"""What our source imports under Python 3.9 and 3.10 in place of newer parts of the standard library."""

import enum
import itertools
import math
import statistics
from collections import namedtuple
from datetime import timezone
from typing import Any, TypeVar, Union

UTC = timezone.utc  # noqa: UP017 - 3.9 has no datetime.UTC
Self = Any
ParamSpec = TypeVar
older_union = Union


class StrEnum(str, enum.Enum):  # noqa: UP042 - 3.9 has no enum.StrEnum
    """enum.StrEnum (3.11): a member is, prints and formats as its value; auto() is the name in lower case."""

    __str__ = str.__str__
    __format__ = str.__format__

    def _generate_next_value_(name, start, count, last_values):
        return name.lower()


def older_zip(*iterables, strict=False):
    """zip(strict=True) (3.10): raises ValueError if the lengths differ."""
    if not strict:
        yield from zip(*iterables)  # noqa: B905 - 3.9 has no strict=
        return
    end = object()
    for values in itertools.zip_longest(*iterables, fillvalue=end):
        if any(value is end for value in values):
            raise ValueError("zip() arguments have different lengths")
        yield values


def pairwise(iterable):
    """itertools.pairwise (3.10)."""
    first, second = itertools.tee(iterable)
    next(second, None)
    return zip(first, second)  # noqa: B905 - as above


LinearRegression = namedtuple("LinearRegression", ["slope", "intercept"])


def linear_regression(x, y):
    """statistics.linear_regression (3.10): slope and intercept by least squares."""
    if len(x) != len(y) or len(x) < 2:
        raise statistics.StatisticsError("two series of the same length, at least 2, are needed")
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    both = math.fsum((one - mean_x) * (other - mean_y) for one, other in older_zip(x, y))
    square = math.fsum((one - mean_x) ** 2 for one in x)
    if not square:
        raise statistics.StatisticsError("x is constant")
    return LinearRegression(slope=both / square, intercept=mean_y - both / square * mean_x)
