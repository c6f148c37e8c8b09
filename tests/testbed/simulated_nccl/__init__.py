"""A program that behaves like NCCL without GPUs, in place of the NCCL probe's engine.  It measures what
NODEGAUGE_SIMULATED_NCCL_MACHINE or `machine.json` in this folder says.  Like NCCL, it reads P2P, NVLS,
logging and visible GPUs from its environment and never from its order.  It needs msgspec,
`nodegauge_probes.nccl.protocol` and this folder, which must keep its name."""
