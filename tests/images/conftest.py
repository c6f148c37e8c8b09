"""Both images, built and unpacked once for all tests of this folder."""

import shutil
import sys
from collections.abc import Iterator

import pytest

from support.image_tools import ROOT, Built, archives, read

sys.path.insert(0, str(ROOT))  # the builder is not part of the installed project


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Built]]:
    folder = tmp_path_factory.mktemp("two images")
    paths = archives("operator", "probe", out=folder / "out")
    yield {name: read(path, name=name, folder=folder / name) for name, path in paths.items()}
    shutil.rmtree(folder)


@pytest.fixture(params=["operator", "probe"])
def image(request: pytest.FixtureRequest, images: dict[str, Built]) -> Built:
    return images[str(request.param)]
