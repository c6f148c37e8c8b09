"""Machines, certificates and a judge that several modules of these tests begin with."""

from collections.abc import Iterator

import pytest
import trustme

from support.bmc_access import Bmcs
from support.judging import listening
from support.objects import NOW
from support.zero import Cluster


@pytest.fixture(scope="module")
def stated_answers() -> Iterator[None]:
    """The operator's judge answers what `support.judging.saying` wrote into a result."""
    with listening():
        yield


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs the BMCs' certificates."""
    return trustme.CA()


@pytest.fixture(scope="module")
def bmcs(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Bmcs:
    """Simulated BMCs with certificates of this authority."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return Bmcs(authority, str(path))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster for `nodegauge zero`; fill it."""
    made, kube = Cluster(), "nodegauge_operator.kube"
    monkeypatch.setattr(f"{kube}.client.connect", made.connect)
    monkeypatch.setattr(f"{kube}.reports.each", made.each_report)
    monkeypatch.setattr(f"{kube}.reports.get", made.report)
    monkeypatch.setattr(f"{kube}.nodes.each", made.each_node)
    monkeypatch.setattr("nodegauge_cli.zero.decision.time.time", lambda: NOW)
    return made
