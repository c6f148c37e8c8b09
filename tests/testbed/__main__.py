"""`python -m testbed`: see cli.py."""

import sys

from testbed.cli import main

sys.exit(main())
