"""A program that behaves like NCCL on a machine without GPUs; it replaces the NCCL probe's engine.

    NODEGAUGE_NCCL_CHILD=.../testbed/simulated_nccl/nccl NODEGAUGE_SIMULATED_NCCL_MACHINE=machine.json

Its measurements come from the machine file, or from `machine.json` in this folder, which an image may have
for containers without GPUs.  Like NCCL, it reads P2P, NVLS, logging and visible GPUs from its environment and
never from its order, so that tests detect a wrong environment.  It needs msgspec,
`nodegauge_probes.nccl.protocol` and this folder, which must keep its name.
"""
