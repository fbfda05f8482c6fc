"""``python -m eventmq`` is the program ``eventmq``."""

from eventmq.cli import main

main()
