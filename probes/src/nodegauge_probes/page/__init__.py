"""A result printed for a person: the matrix of `nvidia-smi topo -m`, tables of health and of NCCL."""
