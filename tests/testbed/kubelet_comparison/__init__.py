"""How like a real kubelet the simulated one is: the same pods on both, and what the API shows of them;
`recorded.json` is what a real kubelet showed (`make e2e ARGS=--record` writes it)."""
