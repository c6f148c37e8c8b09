"""`make e2e`: nodegauge on a stock kubelet, containerd and runc, in namespaces of its own (README.md)."""
