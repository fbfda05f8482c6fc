"""Keeps the rooms and floors of the package, by reading its source; nothing is imported.

The floors themselves stand in pyproject.toml, in the contract that import-linter keeps too. A
runtime import is any import outside ``if TYPE_CHECKING``, also one inside a function.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
CORE, CONTRIB = "eventmq", "eventmq_contrib"
IO_MODULES = frozenset({"zmq", "apsw", "socket", "threading", "time", "os", "subprocess"})
#: The files under eventmq/ that may import them.
IO_FILES = re.compile(
    r"(clock|settings|app|__main__)\.py|wire/socket\.py|(settings|plugins|cli|testing)/.*|"
    r"([^/]+/)+runner[^/]*\.py"
)
PLUGIN_IMPORTS = sys.stdlib_module_names | {"click", CORE, CONTRIB}
#: The one file that opens databases: its library is a dependency of the package, as msgpack is, and
#: whatever plugin needs it takes it from there.
DATABASE, DATABASE_LIBRARY = "eventmq/plugins/database.py", "apsw"
NO_NOUNS = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})


class Import(NamedTuple):
    """One name that a module imports at run time."""

    #: The imported module: the longest part of the path that is a module.
    target: str
    #: The name taken out of it, "" for the module itself.
    name: str
    line: int
    #: Runs when the module is imported, not when a function is called.
    at_top: bool


class Module:
    """One source file."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root).as_posix()
        parts = list(path.relative_to(root).with_suffix("").parts)
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.source = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source, self.path)

    @property
    def room(self) -> str:
        return room_of(self.name)

    def runtime_nodes(self) -> Iterator[tuple[ast.AST, bool]]:
        """Yield every node outside ``if TYPE_CHECKING`` and whether it runs at import."""
        waiting: list[tuple[ast.AST, bool]] = [(self.tree, True)]
        while waiting:
            node, at_top = waiting.pop()
            yield node, at_top
            inside = at_top and not isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            )
            children = ast.iter_child_nodes(node)
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                negated = ast.unparse(node.test).startswith("not ")
                children = iter(node.body if negated else node.orelse)
            waiting.extend((child, inside) for child in children)

    def raw_imports(self) -> Iterator[tuple[str, str, int, bool]]:
        """Yield path, name ("" without ``from``), line and at_top as they are written."""
        for node, at_top in self.runtime_nodes():
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, "", node.lineno, at_top
            elif isinstance(node, ast.ImportFrom):
                path = self.absolute(node)
                for alias in node.names:
                    yield path, alias.name, node.lineno, at_top

    def absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        up = node.level - (1 if self.is_package else 0)
        parts = self.name.split(".")[: len(self.name.split(".")) - up]
        return ".".join([*parts, *([node.module] if node.module else [])])

    @cached_property
    def public_names(self) -> frozenset[str]:
        """The strings of ``__all__``, or the keys of a mapping where that is computed."""
        found: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.Dict | ast.List | ast.Tuple
            ):
                named_all = "__all__" in ast.unparse(node).split("=", 1)[0]
                value = node.value
                items = value.keys if isinstance(value, ast.Dict) else value.elts
                if named_all or (self.name == CORE and isinstance(value, ast.Dict)):
                    found |= {
                        item.value
                        for item in items
                        if isinstance(item, ast.Constant) and isinstance(item.value, str)
                    }
        return frozenset(found)


class Source:
    """The source files of both packages, and the floors."""

    def __init__(self, root: Path, floors: list[list[str]]) -> None:
        self.floors = {room: n for n, rooms in enumerate(reversed(floors)) for room in rooms}
        files = [path for package in (CORE, CONTRIB) for path in (root / package).rglob("*.py")]
        self.modules = {module.name: module for module in (Module(root, p) for p in sorted(files))}

    def imports(self, module: Module) -> Iterator[Import]:
        for path, name, line, at_top in module.raw_imports():
            if name and f"{path}.{name}" in self.modules:
                yield Import(f"{path}.{name}", "", line, at_top)
            else:
                yield Import(path, name, line, at_top)

    def of(self, package: str) -> Iterator[Module]:
        return (m for m in self.modules.values() if m.name.split(".")[0] == package)


def room_of(name: str) -> str:
    """Return the first level of a module of eventmq, "" for the root package itself."""
    return name.split(".")[1] if "." in name else ""


def floors_of(pyproject: Path) -> list[list[str]]:
    """Return the rooms from the top floor down, as import-linter's contract has them."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["id"] == "floors")
    return [[room.strip(" ()") for room in layer.split("|")] for layer in layers]


def imports_go_down(source: Source) -> Iterator[str]:
    """A runtime import goes to a strictly lower floor; plugins never import the broker."""
    for module in source.of(CORE):
        if module.room and module.room not in source.floors:
            yield f"{module.path}: {module.room} has no floor"
            continue
        for target, _, line, _ in source.imports(module):
            room = room_of(target)
            if not target.startswith(f"{CORE}.") or room == module.room or not module.room:
                continue
            if (module.room, room) in {("plugins", "broker"), ("plugins", "scheduler")}:
                yield f"{module.path}:{line}: a plugin imports {target}"
            elif room not in source.floors:
                yield f"{module.path}:{line}: {target} has no floor"
            elif source.floors[room] == source.floors[module.room]:
                yield f"{module.path}:{line}: imports its sibling {target}"
            elif source.floors[room] > source.floors[module.room]:
                yield f"{module.path}:{line}: imports {target}, which is above it"


def imports_have_no_cycle(source: Source) -> Iterator[str]:
    """No module imports itself by way of others, within a room either."""
    graph = {
        module.name: {i.target for i in source.imports(module) if i.target in source.modules}
        for module in source.modules.values()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "a circle of imports: " + " <- ".join(error.args[1])


def the_root_is_not_imported(source: Source) -> Iterator[str]:
    """Inside the package nothing imports ``eventmq``: import the leaf module."""
    for module in source.of(CORE):
        for target, name, line, _ in source.imports(module):
            if target == CORE:
                yield f"{module.path}:{line}: takes {name or 'a module'} from the root package"


def io_stays_in_its_files(source: Source) -> Iterator[str]:
    """Sockets, files, threads and the time are the runners' business, not the core's."""
    for module in source.of(CORE):
        if IO_FILES.fullmatch(module.path.removeprefix(f"{CORE}/")):
            continue
        for target, _, line, _ in source.imports(module):
            if target.split(".")[0] in IO_MODULES:
                yield f"{module.path}:{line}: imports {target}, which only runners and plugins may"


def plugins_start_without_libraries(source: Source) -> Iterator[str]:
    """A plugin module can be imported where the library that it is about is missing."""
    for module in source.modules.values():
        if module.room == "plugins" or module.name.split(".")[0] == CONTRIB:
            for target, _, line, at_top in source.imports(module):
                library = target.split(".")[0]
                if (module.path, library) == (DATABASE, DATABASE_LIBRARY):
                    continue
                if at_top and library not in PLUGIN_IMPORTS:
                    yield f"{module.path}:{line}: imports {target} at its top"


def databases_have_one_library(source: Source) -> Iterator[str]:
    """One file imports the library of databases, and nothing the interpreter's own.

    Two SQLite libraries in one process end each other's locks on a file.
    """
    for module in source.modules.values():
        for target, _, line, _ in source.imports(module):
            library = target.split(".")[0]
            if library == DATABASE_LIBRARY and module.path != DATABASE:
                yield f"{module.path}:{line}: imports {library}: take it from {DATABASE}"
        yield from _own_library(module)


def _own_library(module: Module) -> Iterator[str]:
    for target, _, line, _ in module.raw_imports():
        if target.split(".")[0] in {"sqlite3", "_sqlite3"}:
            yield f"{module.path}:{line}: imports {target}: open databases with {DATABASE}"


def contrib_uses_public_names(source: Source) -> Iterator[str]:
    """A contributed plugin imports what any other plugin could: names in an ``__all__``."""
    for module in source.of(CONTRIB):
        for target, name, line, _ in source.imports(module):
            if target.split(".")[0] != CORE:
                continue
            known = source.modules.get(target)
            hidden = any(part.startswith("_") for part in [*target.split("."), name])
            if hidden or known is None or (name and name not in known.public_names):
                yield f"{module.path}:{line}: {target} {name} is not public"


def files_are_nouns(source: Source) -> Iterator[str]:
    """A file is named for one thing."""
    for module in source.modules.values():
        if NO_NOUNS & set(module.name.split(".")):
            yield f"{module.path}: split it by noun"


Rule = Callable[[Source], Iterator[str]]
RULES: list[Rule] = [
    imports_go_down,
    imports_have_no_cycle,
    the_root_is_not_imported,
    io_stays_in_its_files,
    plugins_start_without_libraries,
    databases_have_one_library,
    contrib_uses_public_names,
    files_are_nouns,
]


@pytest.fixture(scope="module")
def real_source() -> Source:
    return Source(ROOT, floors_of(ROOT / "pyproject.toml"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule, real_source: Source) -> None:
    assert len(real_source.modules) > 1
    problems = sorted(rule(real_source))
    assert not problems, "\n".join([rule.__doc__ or "", *problems])


def test_no_test_and_no_benchmark_opens_databases_with_another_library() -> None:
    """They would end the locks of the store that they look at."""
    paths = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    modules = [Module(ROOT, path) for path in paths]
    assert len(modules) > 100
    assert [] == [problem for module in modules for problem in _own_library(module)]


# The checks themselves: each finds what it is there for and lets pass what is allowed.

FLOORS = [["app"], ["plugins"], ["client", "broker"], ["wire"], ["job", "settings"], ["errors"]]
LAZY = "_WHERE = {'EventMQ': 'eventmq.app'}\ndef __getattr__(name): ...\n"


def source_of(root: Path, files: Mapping[str, str]) -> Source:
    for path, text in {"eventmq/__init__.py": LAZY, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Source(root, FLOORS)


BAD: list[tuple[Rule, dict[str, str], str]] = [
    (imports_go_down, {"job.py": "import eventmq.app", "app.py": ""}, "above it"),
    (imports_go_down, {"job.py": "def f():\n  from . import app", "app.py": ""}, "job.py:2"),
    (imports_go_down, {"job.py": "from .settings import x", "settings.py": ""}, "sibling"),
    (imports_go_down, {"broker/core.py": "from eventmq.client import x"}, "sibling"),
    (imports_go_down, {"plugins/a.py": "from ..broker.core import x"}, "a plugin imports"),
    (imports_go_down, {"attic.py": ""}, "attic has no floor"),
    (imports_go_down, {"app.py": "from eventmq.attic import x"}, "has no floor"),
    (imports_go_down, {"job.py": "if not TYPE_CHECKING:\n  import eventmq.app"}, "job.py:2"),
    (imports_go_down, {"job.py": "if TYPE_CHECKING: ...\nelse:\n  import eventmq.app"}, ":3"),
    (imports_have_no_cycle, {"wire/a.py": "from . import b", "wire/b.py": "from . import a"}, "a"),
    (
        imports_have_no_cycle,
        {"wire/a.py": "from . import b", "wire/b.py": "def f():\n  import eventmq.wire.a"},
        "eventmq.wire.a",
    ),
    (
        imports_have_no_cycle,
        {"wire/__init__.py": "from .a import x", "wire/a.py": "from . import y"},
        "",
    ),
    (the_root_is_not_imported, {"job.py": "import eventmq"}, "job.py:1"),
    (the_root_is_not_imported, {"app.py": "from eventmq import EventMQ"}, "takes EventMQ"),
    (the_root_is_not_imported, {"wire/a.py": "def f():\n  from .. import Job"}, "a.py:2"),
    (io_stays_in_its_files, {"broker/core.py": "import zmq.backend"}, "imports zmq.backend"),
    (io_stays_in_its_files, {"job.py": "from os import urandom"}, "imports os"),
    (io_stays_in_its_files, {"runner.py": "import threading"}, "runner.py:1"),
    (io_stays_in_its_files, {"broker/loop.py": "def f():\n  import time"}, "loop.py:2"),
    (plugins_start_without_libraries, {"plugins/a.py": "import dill"}, "imports dill"),
    (plugins_start_without_libraries, {"plugins/a.py": "try:\n  import zmq\nexcept E: ..."}, "zmq"),
    (plugins_start_without_libraries, {"../eventmq_contrib/a.py": "import pyspark.sql"}, "pyspark"),
    (databases_have_one_library, {"plugins/a.py": "def f():\n  import apsw.ext"}, "a.py:2"),
    (databases_have_one_library, {"job.py": "from sqlite3 import connect"}, "imports sqlite3"),
    (contrib_uses_public_names, {"../eventmq_contrib/a.py": "from eventmq import Core"}, "Core"),
    (contrib_uses_public_names, {"../eventmq_contrib/a.py": "import eventmq.nothing"}, "nothing"),
    (
        contrib_uses_public_names,
        {"job.py": "__all__ = ['Job']", "../eventmq_contrib/a.py": "from eventmq.job import x"},
        "eventmq.job x",
    ),
    (files_are_nouns, {"wire/utils.py": ""}, "by noun"),
]


@pytest.mark.parametrize(("rule", "files", "problem"), BAD)
def test_a_violation_is_found(
    rule: Rule, files: Mapping[str, str], problem: str, tmp_path: Path
) -> None:
    source = source_of(tmp_path, {f"eventmq/{path}": text for path, text in files.items()})
    problems = list(rule(source))
    assert len(problems) == 1
    assert problem in problems[0]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    typing_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import zmq, eventmq.app\n"
    files = {
        "eventmq/errors.py": typing_only,
        "eventmq/job.py": "from eventmq.errors import x\n" * 400,
        "eventmq/settings.py": "import os",
        "eventmq/wire/__init__.py": "from .chunk import y",
        "eventmq/wire/chunk.py": "from eventmq.job import Job\nfrom eventmq.wire import numbers",
        "eventmq/wire/numbers.py": "import struct",
        "eventmq/wire/socket.py": "import zmq",
        "eventmq/client/state.py": 'def f():\n  """' + "\n" * 40 + '"""\n' + "  x\n" * 20,
        "eventmq/broker/runner_turns.py": "import time\nimport eventmq.broker.core",
        "eventmq/broker/core.py": "# hot loop: its benchmark\n@d\ndef f():\n" + "  x\n" * 59,
        "eventmq/plugins/a.py": "import os, click\nfrom eventmq.client import state\n"
        "def f():\n  import dill",
        DATABASE: "import apsw",
        "eventmq/app.py": "import eventmq.plugins.a, threading",
        "eventmq_contrib/__init__.py": "",
        "eventmq_contrib/spark.py": "import csv\nfrom eventmq import EventMQ\n",
    }
    source = source_of(tmp_path, files)
    assert [] == [problem for rule in RULES for problem in rule(source)]
