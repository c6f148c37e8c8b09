"""What every test process needs, whoever started it."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and an ignored signal stays ignored in all children: the
# programs that tests start would never notice Ctrl-C.  A handler becomes the default action in a child.
signal.signal(signal.SIGINT, signal.default_int_handler)
