"""So many processes of a command: ``python -m benchmarks.peers.several N ARGUMENTS...``.

For libraries whose workers are one process each. The arguments are those of Python; the processes
are of the group of this one, so a signal to the group ends them all.
"""

from __future__ import annotations

import subprocess
import sys


def main() -> None:
    """Start them, and wait until they have ended."""
    number, *arguments = sys.argv[1:]
    processes = [subprocess.Popen([sys.executable, *arguments]) for _ in range(int(number))]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
