"""How a node's GPUs are joined: link counts, P2P, and the class that they make."""
