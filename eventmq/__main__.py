"""``python -m eventmq`` is the program ``eventmq``."""

import os
import sys

# For -m the interpreter has put the working directory first; -A and -I do so themselves.
if not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109
    del sys.path[0]

from eventmq.cli import main

main()
