"""`python -m testbed.kubelet`: the host of simulated nodes (see host.py)."""

import sys

from testbed.kubelet.host import main

sys.exit(main())
