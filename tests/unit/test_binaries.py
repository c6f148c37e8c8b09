"""Where the programs of the control plane are kept, and which versions are built."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.binaries import ETCD, HELM, KUBERNETES, MODULES, cache_folder, find_or_build
from testbed.errors import BinaryError


def test_assets_that_are_no_folder_are_an_error() -> None:
    """A mistyped variable is said, not passed over by a build of five minutes."""
    with pytest.raises(BinaryError, match=r"KUBEBUILDER_ASSETS is /does/not/exist.*unset it"):
        find_or_build(lambda line: None, environ={"KUBEBUILDER_ASSETS": "/does/not/exist", "HOME": "/h"})


def test_the_cache_is_where_the_variables_say() -> None:
    """NODEGAUGE_CACHE, then XDG_CACHE_HOME, then the home folder."""
    home = {"HOME": "/h"}
    assert cache_folder(home) == Path("/h/.cache/nodegauge")
    assert cache_folder(home | {"XDG_CACHE_HOME": "relative"}) == Path("/h/.cache/nodegauge")
    assert cache_folder(home | {"XDG_CACHE_HOME": "/x"}) == Path("/x/nodegauge")
    assert cache_folder(home | {"XDG_CACHE_HOME": "/x", "NODEGAUGE_CACHE": "/n"}) == Path("/n")


def test_every_built_version_is_the_one_in_its_go_module() -> None:
    """The folder's name, what the program says and what is built must not drift apart."""
    modules = {"k8s": f"k8s.io/kubernetes v{KUBERNETES}", "helm": f"helm.sh/helm/v4 v{HELM}"}
    for name, line in (modules | {"etcd": f"go.etcd.io/etcd/server/v3 v{ETCD}"}).items():
        assert line in (MODULES / name / "go.mod").read_text()
