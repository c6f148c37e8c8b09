"""A result printed for a person: the matrix of `nvidia-smi topo -m`, and tables of health and bandwidth."""
