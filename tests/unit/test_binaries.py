"""Which versions of the control plane's programs are built."""

from __future__ import annotations

from testbed.binaries import ETCD, HELM, KUBERNETES, MODULES


def test_every_built_version_is_the_one_in_its_go_module() -> None:
    """The folder's name, what the program says and what is built must not drift apart."""
    modules = {"k8s": f"k8s.io/kubernetes v{KUBERNETES}", "helm": f"helm.sh/helm/v4 v{HELM}"}
    for name, line in (modules | {"etcd": f"go.etcd.io/etcd/server/v3 v{ETCD}"}).items():
        assert line in (MODULES / name / "go.mod").read_text()
