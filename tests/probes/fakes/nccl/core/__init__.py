"""A fake of the few names of nccl4py 0.6's `nccl.core` that the engine uses."""

import os
import tempfile
from types import SimpleNamespace

from cuda.core import TROUBLE

from nccl.bindings import nccl as _bindings


def get_version():
    library = SimpleNamespace(version="2.32.3", cuda_variant="12.9", path=None)
    return SimpleNamespace(nccl4py="0.6.0", nccl_bindings="2.32.3", libnccl=library)


class UniqueId:
    """128 bytes, as NCCL's: here the name of a folder where the ranks meet."""

    def __init__(self, folder):
        self.folder = folder

    def __bytes__(self):
        return self.folder.encode().ljust(128, b"\0")

    @classmethod
    def from_bytes(cls, data):
        assert len(data) == 128
        return cls(data.rstrip(b"\0").decode())


def get_unique_id():
    return UniqueId(tempfile.mkdtemp(dir=os.environ["NODEGAUGE_FAKE_FOLDER"]))


class Communicator:
    def __init__(self, handle):
        self.ptr = handle

    @classmethod
    def init_all(cls, devices):
        assert len(set(devices)) == len(devices) > 0
        return [cls(handle) for handle in _bindings.join(len(devices))]

    @classmethod
    def init(cls, nranks, rank, unique_id, config=None):
        return cls(_bindings.join_others(unique_id.folder, nranks, rank))

    def get_async_error(self):
        return 6 if "async" in TROUBLE else 0

    def get_last_error(self):
        return "remote process exited or there was a network error"

    def destroy(self):
        assert self.ptr, "destroyed twice"
        self.ptr = 0
