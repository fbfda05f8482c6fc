"""``python -m eventmq``: runs the program ``eventmq``."""

import os
import sys

# With -m the interpreter puts the working directory first on the path; -A and -I add it themselves.
if not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109
    del sys.path[0]

from eventmq.cli import main

main()
