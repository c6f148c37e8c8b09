"""Tests on a real NVIDIA GPU and driver; everywhere else they are skipped, and say what is missing.

`make test ARGS=tests/gpu` where there is one; those of the benchmark need the extra `nccl` besides:
`.venv/bin/pip install --editable '.[nccl]' --constraint constraints.txt`.
"""

import importlib.util

import pynvml
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def uuids() -> list[str]:
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        visible = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA driver answers here: {error}")
    if not visible:
        pytest.skip("the NVIDIA driver shows no GPU")
    return visible


@pytest.fixture(scope="session")
def nccl(uuids: list[str]) -> list[str]:
    missing = [name for name in ("nccl", "cuda") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no Python package {' and '.join(missing)}: pip install '.[nccl]'")
    return uuids
