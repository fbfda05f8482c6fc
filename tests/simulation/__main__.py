"""``python -m tests.simulation --seeds N``: run seeds, print one closing line."""

from __future__ import annotations

import os
import sys

#: Sets of strings are iterated in the order of their hashes, which differ from run to run.
HASHES = "0"

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASHES:
        os.environ["PYTHONHASHSEED"] = HASHES
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation.command import main

    sys.exit(main(sys.argv[1:]))
