"""Flags and files of the four programs of a control plane; what differs from a real cluster, and why."""

import json
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import release
from testbed.loopback import LOOPBACK

SERVICE_RANGE = "10.0.0.0/24"
ISSUER = "https://kubernetes.default.svc"
NODE_GRACE_SECONDS = 3600
"""A node whose kubelet is silent turns NotReady only after this: a busy machine must not decide a test."""

ADMIN = "testbed-admin"
KUBELET = "testbed-kubelet"
SCHEDULER = "system:kube-scheduler"
CONTROLLER_MANAGER = "system:kube-controller-manager"
USERS = {ADMIN: "system:masters", KUBELET: "system:masters", SCHEDULER: "", CONTROLLER_MANAGER: ""}
"""Static users and their group. Scheduler and controller manager have no more rights than in any cluster."""


@dataclass(frozen=True)
class OptIn:
    """What an administrator turns on, all that some test needs: `gates` in every program, and `apis` served
    beside the default ones."""

    gates: tuple[str, ...]
    apis: tuple[str, ...]


OPT_INS = {
    "1.37": OptIn(
        gates=("GenericWorkload", "TopologyAwareWorkloadScheduling"),
        apis=("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3"),
    ),
    "1.36": OptIn(
        gates=("DRADeviceTaintRules", "GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling"),
        apis=("resource.k8s.io/v1beta2", "scheduling.k8s.io/v1alpha2"),
    ),
}
"""By release: a program ends at the name of a gate or API version that it does not know.  Rules for tainted
devices and gangs of pods; from 1.37 on the former are there by default, and GenericWorkload schedules gangs
(pkg/features/kube_features.go and pkg/controlplane/instance.go of 1.36.3 and 1.37.2)."""

UNCACHED = (
    *("endpoints", "limitranges", "persistentvolumeclaims", "persistentvolumes", "podtemplates"),
    *("replicationcontrollers", "controllerrevisions.apps", "cronjobs.batch"),
    *("horizontalpodautoscalers.autoscaling", "runtimeclasses.node.k8s.io"),
    *(f"{one}.certificates.k8s.io" for one in ("certificatesigningrequests", "clustertrustbundles")),
    *(f"{one}.networking.k8s.io" for one in ("ingresses", "ingressclasses", "ipaddresses", "servicecidrs")),
    *(f"{one}.storage.k8s.io" for one in ("csidrivers", "csinodes", "csistoragecapacities")),
    *(f"{one}.storage.k8s.io" for one in ("storageclasses", "volumeattachments", "volumeattributesclasses")),
)
"""What hardly anybody reads here is watched in etcd itself: each watch cache has timers of its own.  An idle
API server and etcd took 0.019 of a core with them, and 0.014 without."""
NEEDLESS = (
    *("cronjob", "endpoints", "endpointslice-mirroring", "ephemeral-volume", "horizontal-pod-autoscaler"),
    *("certificatesigningrequest-approving", "certificatesigningrequest-cleaner"),
    *("certificatesigningrequest-signing", "kube-apiserver-serving-clustertrustbundle-publisher"),
    *("legacy-serviceaccount-token-cleaner", "persistentvolume-attach-detach", "persistentvolume-binder"),
    *("persistentvolume-expander", "persistentvolume-protection", "persistentvolumeclaim-protection"),
    *("podcertificaterequest-cleaner", "replicationcontroller", "service-cidr", "storage-version-migrator"),
    *("storageversion-garbage-collector", "ttl-after-finished", "volumeattributesclass-protection"),
)
"""Controllers of what no test has, such as volumes.  They look at their queues twice a second, and one looks
ten times for volumes to attach: an idle controller manager took 0.012 of a core, and takes 0.006."""

AUDIT_POLICY = Path(__file__).with_name("audit-policy.yaml")


def _feature_gates() -> str:
    return f"--feature-gates={','.join(f'{gate}=true' for gate in OPT_INS[release()].gates)}"


class Layout:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.pki = directory / "pki"
        self.ca_file = self.pki / "apiserver.crt"
        """The API server's own certificate together with its authority."""
        self.key_file = self.pki / "apiserver.key"
        """The API server's key; it also signs service account tokens (the flag's own default)."""
        self.etcd_data = directory / "etcd"
        self.tokens = directory / "tokens.csv"
        self.audit_log = directory / "audit.log"
        self.scheduler_config = directory / "scheduler.json"
        self.admin_kubeconfig = directory / "kubeconfig"

    def kubeconfig(self, name: str) -> Path:
        return self._directory / "kubeconfigs" / name

    def log(self, program: str) -> Path:
        return self._directory / "logs" / f"{program}.log"


def etcd_flags(layout: Layout, *, port: int) -> list[str]:
    """One member on loopback that does not wait for the disk; its peer address only names it."""
    client = f"http://{LOOPBACK}:{port}"
    return [
        f"--data-dir={layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls=http://{LOOPBACK}:0",
        f"--initial-advertise-peer-urls=http://{LOOPBACK}:2380",
        f"--initial-cluster=default=http://{LOOPBACK}:2380",
        "--unsafe-no-fsync",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=5m",
        f"--quota-backend-bytes={8 * 1024**3}",
        "--log-level=warn",
    ]


def apiserver_flags(layout: Layout, *, port: int, etcd_port: int) -> list[str]:
    """Our certificate, RBAC, static tokens for our users; audit lines are written before the next answer.
    `--endpoint-reconciler-type=none`: a loopback address is no valid endpoint of the `kubernetes` service."""
    return [
        _feature_gates(),
        f"--runtime-config={','.join(f'{api}=true' for api in OPT_INS[release()].apis)}",
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--secure-port={port}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={layout.pki}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={layout.key_file}",
        f"--service-account-signing-key-file={layout.key_file}",
        f"--token-auth-file={layout.tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={AUDIT_POLICY}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-mode=blocking",
        "--audit-log-maxsize=100000",
        "--profiling=false",
        f"--watch-cache-sizes={','.join(f'{one}#0' for one in UNCACHED)}",
        # Ends watches when it is told to stop; without this it waits a minute for clients to hang up.
        "--shutdown-watch-termination-grace-period=100ms",
    ]


def scheduler_config(layout: Layout) -> str:
    """A pod that did not fit is tried again after a second, not after up to ten."""
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(layout.kubeconfig(SCHEDULER)), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }
    return json.dumps(document, indent=1)


def scheduler_flags(layout: Layout) -> list[str]:
    return [_feature_gates(), f"--config={layout.scheduler_config}", "--secure-port=0"]


def controller_manager_flags(layout: Layout) -> list[str]:
    """Every controller under its own service account, as cluster installers have it; it serves nothing."""
    return [
        _feature_gates(),
        f"--kubeconfig={layout.kubeconfig(CONTROLLER_MANAGER)}",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        "--leader-elect=false",
        "--secure-port=0",
        f"--controllers={','.join(['*', *(f'-{one}-controller' for one in NEEDLESS)])}",
        f"--root-ca-file={layout.ca_file}",
        f"--service-account-private-key-file={layout.key_file}",
        "--use-service-account-credentials=true",
        f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        f"--node-startup-grace-period={NODE_GRACE_SECONDS}s",
    ]
