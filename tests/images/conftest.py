"""Both images, unpacked once for all tests of this folder.  `make e2e` uses the same archives: whoever comes
second builds none."""

import os
import shutil
import sys
from collections.abc import Iterator

import pytest

from support.image_tools import ROOT, Built, archives, read
from testbed.binaries import cache_folder
from testbed.interruption import alone

sys.path.insert(0, str(ROOT))  # the builder is not part of the installed project


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Built]]:
    folder, out = tmp_path_factory.mktemp("two images"), cache_folder(os.environ) / "e2e" / "images"
    out.mkdir(parents=True, exist_ok=True)
    with alone(out / "lock"):
        paths = archives("operator", "probe", out=out)
        unpacked = {name: read(path, name=name, folder=folder / name) for name, path in paths.items()}
    yield unpacked
    shutil.rmtree(folder)


@pytest.fixture(params=["operator", "probe"])
def image(request: pytest.FixtureRequest, images: dict[str, Built]) -> Built:
    return images[str(request.param)]
