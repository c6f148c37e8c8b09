"""`make e2e`: nodegauge on a kubelet, a containerd and a runc that nobody here wrote, in namespaces of its
own (README.md)."""
