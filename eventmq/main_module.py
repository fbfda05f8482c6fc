"""The importable name of the module that runs as ``__main__``."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["main_name", "real_name"]


def main_name() -> str:
    """Return the importable name of ``__main__``, or ``__main__`` if there is none.

    ``python -m pkg.module`` is ``pkg.module``; ``python path/module.py`` is ``module``; an
    interactive session has no other name.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else "__main__"


def real_name(module: str) -> str:
    """Return a module's name, with the importable one for ``__main__``."""
    return main_name() if module == "__main__" else module
