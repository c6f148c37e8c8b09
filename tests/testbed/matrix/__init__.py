"""Every kind of machine with every fault that it can have, to what must follow (`make matrix` prints it).

The profiles (`healthy`) and `scenarios.yaml` hold what must be, written from the rules; `worker` finds out
what is, with the real probe on the simulated driver, the real judge and the operator's own decisions.
"""
