"""What the load probe reads from a disk: a real file, below made-up trees of /sys and /proc that say which
disk it is on."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodegauge_contract import Storage, Unavailable
from nodegauge_probes.host import mounts
from nodegauge_probes.load import storage
from nodegauge_probes.load.storage import BLOCK, FILE
from nodegauge_probes.load.storage_options import Options

SIZE = 16 * BLOCK
NVME = "devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1"
Reads = Callable[..., Storage]
ON_NVME = {"filesystem": "ext4", "device": "nvme0n1", "numa_node": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    try:
        os.close(os.open(tmp_path / "direct", os.O_CREAT | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"{tmp_path} has no O_DIRECT (tmpfs before Linux 6.6): {error}")
    return tmp_path / "data"


@pytest.fixture
def reads(tmp_path: Path, folder: Path) -> Reads:
    """`reads(write=True)`: one measurement on a partition of an NVMe disk; `own` are options."""

    def on(
        disk: str = NVME,
        *,
        kind: str = "ext4",
        source: str = "/dev/x",
        linked: bool = True,
        rotational: str = "0",
        transport: str = "pcie",
        **own: Any,
    ) -> Storage:
        sysfs, procfs = tmp_path / "sys", tmp_path / "proc"
        part = sysfs / disk / "part1"
        for path, text in (
            (part / "partition", "1"),
            (part.parent / "queue/rotational", rotational),
            (part.parent / "device/transport", transport),
            (part.parent / "device/numa_node", "1"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (sysfs / "dev/block").mkdir(parents=True, exist_ok=True)
        if linked:
            (sysfs / "dev/block/259:1").symlink_to(part)
        (procfs / "self").mkdir(parents=True, exist_ok=True)
        mount = f"30 1 259:1 / {str(folder.parent).replace(' ', chr(92) + '040')} rw - {kind} {source} rw\n"
        (procfs / "self/mountinfo").write_text(f"22 1 0:21 / / rw - overlay overlay rw\n{mount}")
        known: dict[str, Any] = {
            "folder": folder,
            "path": "/mnt/nvme",
            "size": SIZE,
            "seconds": 0.2,
            "write": False,
        }
        return storage.measure(Options(**known | own), sysfs=sysfs, procfs=procfs, most=1e6)

    return on


def random_file(folder: Path, size: int = SIZE) -> Path:
    (folder / FILE).write_bytes(os.urandom(size))
    return folder / FILE


def test_a_file_is_read_past_the_page_cache_and_left_as_it_is(folder: Path, reads: Reads) -> None:
    before = random_file(folder).stat()
    seen = reads()
    assert (seen.problem, seen.path) == ("", "/mnt/nvme")
    assert {name: getattr(seen, name) for name in ON_NVME} == ON_NVME
    assert seen.read_gbps == pytest.approx(seen.bytes / seen.seconds / 1e9, rel=0.05)
    assert seen.bytes % BLOCK == 0
    assert seen.bytes <= storage.PASSES * SIZE
    assert isinstance(seen.write_gbps, Unavailable)
    after = (folder / FILE).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_a_policy_that_allows_it_makes_the_file_once(folder: Path, reads: Reads) -> None:
    """One that is too small is replaced, and what an earlier run left half made."""
    random_file(folder, BLOCK)
    (folder / f"{FILE}.part").write_text("x")
    first, second = reads(write=True), reads(write=True, linked=False)
    assert (first.problem, second.problem) == ("", "")
    assert isinstance(first.write_gbps, int | float)
    assert isinstance(second.write_gbps, Unavailable)
    assert [(file.name, file.stat().st_size) for file in folder.iterdir()] == [(FILE, SIZE)]


def nothing(folder: Path) -> None:
    """An empty folder."""


def link_out(folder: Path) -> None:
    random_file(folder.parent).rename(folder.parent / "secret")
    (folder / FILE).symlink_to(folder.parent / "secret")


def link_to_folder(folder: Path) -> None:
    random_file(folder)
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("prepare", "machine", "message"),
    [
        (nothing, {}, f"there is no /mnt/nvme/{FILE}, and the policy allows no writing"),
        (lambda folder: random_file(folder, BLOCK), {}, "head -c 16M /dev/urandom"),
        (lambda folder: (folder / FILE).write_bytes(bytes(SIZE)), {}, "holds zeros"),
        (lambda folder: os.mkfifo(folder / FILE), {}, "is no file; remove it"),
        (link_out, {}, "is no file; remove it"),
        (link_out, {"write": True}, "is no file; remove it"),
        (link_to_folder, {}, "is a link"),
        (random_file, {"kind": "tmpfs", "linked": False}, "tmpfs lies on no block device"),
        (random_file, {"kind": "nfs4", "source": "server:/export", "linked": False}, "nfs4 lies on no block"),
        (random_file, {"kind": "overlay", "source": "overlay", "linked": False}, "overlay lies on no block"),
        (random_file, {"rotational": "1"}, "nvme0n1 rotates"),
        (random_file, {"rotational": "?"}, "may rotate"),
        (random_file, {"transport": "tcp"}, "NVMe over tcp"),
        (random_file, {"disk": "devices/virtual/block/rbd0"}, "rbd0 is no disk of this machine"),
        (random_file, {"disk": "devices/platform/host1/session1/target1/block/sda"}, "iSCSI"),
    ],
)  # fmt: skip
def test_no_number_without_a_local_disk_and_a_real_file(
    prepare: Callable[[Path], Any], machine: dict[str, Any], message: str, folder: Path, reads: Reads
) -> None:
    prepare(folder)
    seen = reads(**machine)
    assert message in seen.problem
    assert isinstance(seen.read_gbps, Unavailable)
    if not machine.get("write"):
        assert not (folder / f"{FILE}.part").exists()


def test_a_disk_is_not_filled(folder: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SimpleNamespace(f_frsize=1, f_blocks=10 * SIZE, f_bavail=2 * SIZE)
    monkeypatch.setattr(os, "fstatvfs", lambda _: space)
    assert "GiB are free" in reads(write=True).problem
    assert list(folder.iterdir()) == []


def test_what_the_device_did_not_deliver_is_no_number(
    folder: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that answers from its cache in spite of O_DIRECT."""
    random_file(folder)
    monkeypatch.setattr(mounts, "bytes_read", lambda device: 0)
    assert "0% of what was read came from nvme0n1: the rest was cached" in reads().problem


def test_a_dead_disk_holds_up_nobody(folder: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    random_file(folder)
    hung = threading.Event()
    monkeypatch.setattr(storage, "MORE_S", 0.0)
    monkeypatch.setattr(os, "preadv", lambda *_: hung.wait(20) and 0)
    assert "did not answer within 0.2 s" in reads().problem
    hung.set()
