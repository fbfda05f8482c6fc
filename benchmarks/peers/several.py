"""Runs a command in several processes: ``python -m benchmarks.peers.several N ARGUMENTS...``.

It is for libraries whose workers have one process each. The arguments are those of Python. The
processes are in the group of this one, so a signal to the group ends them all.
"""

from __future__ import annotations

import subprocess
import sys


def main() -> None:
    """Start the processes, and wait until they have ended."""
    number, *arguments = sys.argv[1:]
    processes = [subprocess.Popen([sys.executable, *arguments]) for _ in range(int(number))]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
