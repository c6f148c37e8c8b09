"""A simulated kubelet: a real Node and real pods, whose containers are plain processes."""
