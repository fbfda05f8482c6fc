"""Finds the app that ``-A module[:attribute]`` names."""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq import shadows
from eventmq.errors import AppNotFound, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from eventmq.app import EventMQ

__all__ = ["Found", "find_app", "import_modules", "import_named", "join_path", "loads_plugins"]

#: What is looked for where no attribute is named.
_USUAL = "app"

#: Where this package lies.
_PACKAGE = Path(__file__).parents[1]


class Found(NamedTuple):
    """An app, and ``module:attribute`` by which another process finds it."""

    app: EventMQ
    path: str


def join_path() -> None:
    """Put the working directory on the path, where modules of the user are.

    Only where the command line names one: a command that asks a broker something imports nothing
    of whatever directory it is called in.
    """
    shadows.join_path(str(Path.cwd()))


def loads_plugins() -> bool:
    """Return whether ``-p`` names plugins, or the environment does as that does for children."""
    return bool(os.environ.get("EVENTMQ_LOAD_PLUGINS"))


def import_modules(names: Iterable[str]) -> None:
    """Import the modules of ``-I``.

    Raises:
        AppNotFound: One cannot be imported.
    """
    for name in names:
        import_named(name, f"-I {name}")


def find_app(text: str) -> Found:
    """Return the app that a text names: ``module`` or ``module:attribute``.

    Without an attribute it is ``app``, else the module's only `EventMQ`.

    Raises:
        AppNotFound: There is none, or its module raises; the message says what would be right.
    """
    name, colon, attribute = text.partition(":")
    if not name or (colon and not attribute):
        raise AppNotFound(f"-A {text!r} names no app; write -A module or -A module:attribute")
    module = import_named(name, f"-A {text}")
    attribute = attribute or _only(module)
    return Found(_named(module, attribute), f"{name}:{attribute}")


def import_named(name: str, option: str) -> ModuleType:
    """Return a module.

    Args:
        name: Of the module.
        option: What names it, for people.

    Raises:
        AppNotFound: It cannot be imported; the message says why.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotFound(f"{option}: {_missing(error.name, name)}") from error
        raise AppNotFound(f"{option}: {_broken(name, error)}") from error
    except (Exception, SystemExit) as error:
        raise AppNotFound(f"{option}: {_broken(name, error)}") from error


def _missing(missing: str, name: str) -> str:
    """Return what to say where there is no such module."""
    there = f"there is no module {missing!r} in {Path.cwd()} or on the path"
    if name.endswith(".py") or "/" in name:
        right = name.removesuffix(".py").strip("./").replace("/", ".")
        return f"{there}; name a module, not a file: {right}"
    modules = [path.stem for path in Path().glob("*.py") if path.stem.isidentifier()]
    hint = did_you_mean(missing, modules)
    if "did you mean" in hint:
        return f"{there}; {hint}"
    return f"{there}; run this in the directory that has it, or put that on PYTHONPATH"


def _broken(name: str, error: BaseException) -> str:
    """Return what to say where a module raises at its import: what, and the line."""
    # The first frame is in here; what lies in this package is not the user's either.
    frames = traceback.extract_tb(error.__traceback__)[1:]
    ours = [f for f in frames if "importlib" not in f.filename and not _is_own(f.filename)]
    where = f" ({Path(ours[-1].filename).name}, line {ours[-1].lineno})" if ours else ""
    if isinstance(error, SyntaxError):
        where = ""  # it says so itself
    return f"the module {name!r} cannot be imported: {type(error).__name__}: {error}{where}"


def _is_own(filename: str) -> bool:
    """Return whether a file is one of this package."""
    return Path(filename).is_relative_to(_PACKAGE)


def _named(module: ModuleType, attribute: str) -> EventMQ:
    from eventmq.app import EventMQ

    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [*_apps(module)] or [name for name in vars(module) if name[0] != "_"]
            hint = did_you_mean(attribute, known)
            raise AppNotFound(f"the module {module.__name__!r} has no {attribute!r}; {hint}")
        found = getattr(found, part)
    if not isinstance(found, EventMQ):
        kind, apps = type(found).__name__, _apps(module)
        hint = did_you_mean(attribute, apps) if apps else "name one that is EventMQ(...)"
        what = f"{module.__name__}:{attribute}"
        raise AppNotFound(f"{what} is no app, but of type {kind}; {hint}")
    return found


def _apps(module: ModuleType) -> Mapping[str, EventMQ]:
    from eventmq.app import EventMQ

    return {name: value for name, value in vars(module).items() if isinstance(value, EventMQ)}


def _only(module: ModuleType) -> str:
    """Return the attribute that holds the module's app."""
    apps, name = _apps(module), module.__name__
    if _USUAL in apps:
        return _USUAL
    if not apps:
        msg = f"the module {name!r} has no app; it needs a line such as app = EventMQ({name!r})"
        raise AppNotFound(msg)
    first = next(iter(apps))
    if len({id(app) for app in apps.values()}) > 1:
        names = ", ".join(apps)
        msg = f"the module {name!r} has several apps: {names}; name one, as in -A {name}:{first}"
        raise AppNotFound(msg)
    return first
