"""What a peer's server needs before its first job: ``python -m benchmarks.peers.prepare PEER``."""

from __future__ import annotations

import sys


def main() -> None:
    """Make the tables of the peer that wants some."""
    if sys.argv[1] == "procrastinate":
        from benchmarks.peers.apps.procrastinate_app import app

        with app.open():
            app.schema_manager.apply_schema()


if __name__ == "__main__":
    main()
