"""A fake of the few names of nccl4py 0.6's `nccl.core` that the engine uses."""

from __future__ import annotations

from types import SimpleNamespace

from cuda.core import TROUBLE

from nccl.bindings import nccl as _bindings


def get_version():
    library = SimpleNamespace(version="2.32.3", cuda_variant="12.9", path=None)
    return SimpleNamespace(nccl4py="0.6.0", nccl_bindings="2.32.3", libnccl=library)


class Communicator:
    alive = 0

    def __init__(self, handle):
        self.ptr = handle
        Communicator.alive += 1

    @classmethod
    def init_all(cls, devices):
        assert len(set(devices)) == len(devices) > 0
        return [cls(handle) for handle in _bindings.join(len(devices))]

    def get_async_error(self):
        return 6 if "async" in TROUBLE else 0

    def get_last_error(self):
        return "remote process exited or there was a network error"

    def destroy(self):
        assert self.ptr, "destroyed twice"
        self.ptr = 0
        Communicator.alive -= 1
