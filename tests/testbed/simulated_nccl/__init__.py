"""A program that behaves like NCCL on a machine without GPUs, and takes the place of the benchmark's engine.

    NODEGAUGE_NCCL_CHILD=.../testbed/simulated_nccl/nccl NODEGAUGE_STANDIN_MACHINE=machine.json

What it would measure comes from the machine file, or from `machine.json` in this folder, which an image may
have for containers without GPUs.  What NCCL reads from its environment (P2P or NVLS off, where and what to
log, which GPUs there are) it reads there too, never from its order: who starts it has to get that right.
Needs msgspec, `nodegauge_probes.nccl.protocol` and this folder.  It touches no GPU; its times are computed,
not taken: it tells nothing about any hardware.
"""
