"""The interconnect class: NVLink counts, P2P status, fabric state and the ring, joined into one answer."""
