"""A fleet of simulated machines: `python -m fleet SCENARIO`, in virtual time or on a real control plane."""
