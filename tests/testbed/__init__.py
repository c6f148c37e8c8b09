"""A real control plane, simulated nodes and simulated GPUs, on one machine without any of them."""
