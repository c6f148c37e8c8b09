"""Simulated weeks of a cluster with everything that goes wrong in it, and an oracle that asks of every change
on every node what caused it (`make life`, docs/life.md)."""
