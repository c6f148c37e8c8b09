"""Control groups of both versions and /dev/shm, below a root of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_contract import Unavailable
from nodegauge_probes.host.kernel import Cgroup, growth, shm_bytes

STAT = "usage_usec 9\nnr_periods 12\nnr_throttled {}\nthrottled_usec 7\n"


class Roots:
    """A sysfs and a procfs."""

    def __init__(self, folder: Path) -> None:
        self.sysfs, self.procfs = folder / "sys", folder / "proc"

    def has(self, path: str, text: str) -> None:
        file = self.sysfs / "fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def is_in(self, text: str) -> None:
        file = self.procfs / "self/cgroup"
        file.parent.mkdir(parents=True)
        file.write_text(text)

    def cgroup(self) -> Cgroup:
        return Cgroup(sysfs=self.sysfs, procfs=self.procfs)


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path)


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ("0::/\n", "cpu.stat"),
        ("", "cpu.stat"),
        ("0::/kubepods.slice/pod1/c1\n", "kubepods.slice/pod1/c1/cpu.stat"),
        ("0::/kubepods.slice/pod1/c1\n", "cpu.stat"),
        ("4:cpu,cpuacct:/kubepods/pod1/c1\n0::/\n", "cpu,cpuacct/kubepods/pod1/c1/cpu.stat"),
        ("4:cpu,cpuacct:/kubepods/pod1/c1\n", "cpu,cpuacct/cpu.stat"),
        ("1:cpu:/\n4:memory:/x\n0::/\n", "cpu/cpu.stat"),
    ],
)
def test_throttling_of_both_versions(roots: Roots, own: str, path: str) -> None:
    """In the group that the kernel names, or in what a container sees as the root."""
    roots.is_in(own)
    roots.has(path, STAT.format(5))
    assert roots.cgroup().throttled_periods() == 5


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n"),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_of_both_versions(roots: Roots, path: str, text: str) -> None:
    """The kernel's own count."""
    roots.has(path, text)
    assert roots.cgroup().oom_kills() == 2


def test_own_group_comes_first(roots: Roots) -> None:
    """On a machine the root counts everybody's."""
    roots.is_in("0::/mine\n")
    roots.has("cpu.stat", STAT.format(99))
    roots.has("mine/cpu.stat", STAT.format(1))
    assert roots.cgroup().throttled_periods() == 1


def test_what_is_not_there_is_a_reason(roots: Roots) -> None:
    """No cgroups, or a root group, which is never throttled and has no count."""
    assert roots.cgroup().throttled_periods() == Unavailable("no nr_throttled in this control group")
    roots.has("cpu.stat", "usage_usec 9\n")
    assert isinstance(roots.cgroup().throttled_periods(), Unavailable)
    assert isinstance(roots.cgroup().oom_kills(), Unavailable)


def test_growth_is_a_number_or_a_reason() -> None:
    """A counter that went back counts something else now."""
    no = Unavailable("no")
    assert growth(3, 5) == 2
    assert growth(no, 5) == growth(5, no) == no
    assert isinstance(growth(5, 3), Unavailable)


def test_the_size_of_dev_shm(tmp_path: Path) -> None:
    """Of the file system, in bytes."""
    size = shm_bytes(tmp_path)
    assert isinstance(size, int)
    assert size > 1 << 20
    assert isinstance(shm_bytes(tmp_path / "nowhere"), Unavailable)
