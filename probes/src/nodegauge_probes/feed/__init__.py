"""What the GPUs of a node do over a window, and what the machine gives them; see nodegauge_contract.feed."""
