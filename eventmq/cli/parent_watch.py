"""How a child of `children` runs the program: it does not outlive its parent."""

from __future__ import annotations

import os
import signal
import threading
import time

from eventmq.cli import main

__all__ = ["live"]

#: Seconds that a process whose parent was killed takes to end as usual.
ORPHAN_GRACE = 5.0


def live() -> None:
    """Run the program as a child: until it ends by itself, is told to, or has no parent."""
    threading.Thread(target=_end_with_parent, name="eventmq-lifeline", daemon=True).start()
    main(child=True)


def _end_with_parent() -> None:
    """Send this process SIGTERM when its stdin ends, which the parent holds open."""
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE)
    os.kill(os.getpid(), signal.SIGTERM)  # at once
