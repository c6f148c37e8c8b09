"""One guarded release for all tests of the admission policies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.guarded import Guarded, release


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A release with its policies in force; tests leave nothing behind."""
    with release(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded
