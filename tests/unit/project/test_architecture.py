"""Keeps the layers of the package, by reading its source; nothing is imported.

The layers and the list of pure modules are contracts of import-linter in pyproject.toml. A runtime
import is any import outside ``if TYPE_CHECKING``, also one inside a function. Circles are looked
for among all imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
CORE, CONTRIB = "eventmq", "eventmq_contrib"
IO_MODULES = frozenset({
    "zmq", "apsw", "socket", "select", "selectors", "threading", "time", "os", "subprocess",
})  # fmt: skip
#: The packages whose modules decide, unless they import one of these.
DECIDING = frozenset({
    "broker", "client", "engine", "events", "execution", "graph", "scheduler", "store", "wire",
    "worker",
})  # fmt: skip
PLUGIN_IMPORTS = sys.stdlib_module_names | {"click", CORE, CONTRIB}
#: The one file that opens databases: its library is a dependency of the package, as msgpack is, and
#: whatever plugin needs it takes it from there.
DATABASE, DATABASE_LIBRARY = "eventmq/plugins/database.py", "apsw"
#: What opens databases of applications, by the libraries that these use, and never a store.
OUTBOX = ("eventmq_contrib/outbox/", "tests/contrib/outbox/")
#: The modules that authors of plugins import names from.
PUBLIC = frozenset({
    CORE, "eventmq.errors", "eventmq.engine", "eventmq.fsck", "eventmq.sdk", "eventmq.sdk.events",
    "eventmq.gateway", "eventmq.cli", "eventmq.testing",
})  # fmt: skip
#: The modules of the contracts that plugins keep.
CONTRACTS = ("eventmq.interfaces", "eventmq.schedule")
#: Names of gateways and pools, and words of their protocols.
PLUGIN_NAMES = re.compile(r"spark|majordomo|mc0|\bemp\b|\btls|prefork|sticky", re.IGNORECASE)
#: Where the core names a plugin, in lines with these words.
NAMES_ALLOWED: Mapping[str, Sequence[str]] = {
    # The table of what is built in.
    "eventmq/registry/names.py": ["routing.sticky", "pools.prefork"],
    # Defaults are names of plugins, and so are examples of values.
    "eventmq/settings/record.py": ['pool: str = option("prefork"', '"reports:sticky,'],
    # Type checkers know no plugins.
    "eventmq/task/options.py": ["        majordomo: str | None"],
    # Names of libraries.
    "eventmq/shadows.py": ['"pyspark"'],
}
#: Modules of contributed plugins that every program imports.
PLUGIN_ENTRY = re.compile(rf"{CONTRIB}(\.gateways)?(\.\w+)?")
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
        #: By whether those for types are among them: each rule asks, and reading them takes long.
        self._raw_imports: dict[bool, list[tuple[str, str, int, bool]]] = {}

    @property
    def package(self) -> str:
        return package_of(self.name)

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

    def raw_imports(self, *, types: bool = False) -> list[tuple[str, str, int, bool]]:
        """Return path, name ("" without ``from``), line and at_top as they are written.

        Args:
            types: Those under ``if TYPE_CHECKING`` too.
        """
        if types not in self._raw_imports:
            self._raw_imports[types] = list(self._read_imports(types=types))
        return self._raw_imports[types]

    def _read_imports(self, *, types: bool) -> Iterator[tuple[str, str, int, bool]]:
        every = ((node, True) for node in ast.walk(self.tree))
        for node, at_top in every if types else self.runtime_nodes():
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
    """The source files of both packages, and the layers."""

    def __init__(self, root: Path, layers: list[list[str]], pure: Sequence[str] = ()) -> None:
        #: What decides: modules without sockets, files, threads and clocks.
        self.pure = frozenset(pure)
        self.layers = {
            package: n for n, packages in enumerate(reversed(layers)) for package in packages
        }
        files = [path for package in (CORE, CONTRIB) for path in (root / package).rglob("*.py")]
        self.modules = {module.name: module for module in (Module(root, p) for p in sorted(files))}

    def imports(self, module: Module, *, types: bool = False) -> Iterator[Import]:
        for path, name, line, at_top in module.raw_imports(types=types):
            if name and f"{path}.{name}" in self.modules:
                yield Import(f"{path}.{name}", "", line, at_top)
            else:
                yield Import(path, name, line, at_top)

    def of(self, package: str) -> Iterator[Module]:
        return (m for m in self.modules.values() if m.name.split(".")[0] == package)


def package_of(name: str) -> str:
    """Return the first level of a module of eventmq, "" for the root package itself."""
    return name.split(".")[1] if "." in name else ""


def contract(name: str) -> dict[str, list[str]]:
    """Return a contract of import-linter."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return next(c for c in tools["importlinter"]["contracts"] if c["id"] == name)


def real() -> Source:
    """Return the project's own source, with the layers and the pure modules of import-linter."""
    layers = [
        [package.strip(" ()") for package in layer.split("|")]
        for layer in contract("layers")["layers"]
    ]
    return Source(ROOT, layers, contract("pure")["source_modules"])


def imports_go_down(source: Source) -> Iterator[str]:
    """A runtime import goes to a strictly lower layer; plugins never import the broker."""
    for module in source.of(CORE):
        if module.package and module.package not in source.layers:
            yield f"{module.path}: {module.package} has no layer"
            continue
        for target, _, line, _ in source.imports(module):
            package = package_of(target)
            if not target.startswith(f"{CORE}.") or package == module.package or not module.package:
                continue
            if (module.package, package) in {("plugins", "broker"), ("plugins", "scheduler")}:
                yield f"{module.path}:{line}: a plugin imports {target}"
            elif package not in source.layers:
                yield f"{module.path}:{line}: {target} has no layer"
            elif source.layers[package] == source.layers[module.package]:
                yield f"{module.path}:{line}: imports its sibling {target}"
            elif source.layers[package] > source.layers[module.package]:
                yield f"{module.path}:{line}: imports {target}, which is above it"


def imports_have_no_circle(source: Source) -> Iterator[str]:
    """No module names itself by way of others, in types either: they are one idea in two files."""
    graph = {
        module.name: {
            target
            for target, *_ in source.imports(module, types=True)
            if target in source.modules and target != module.name
        }
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


def what_decides_is_pure(source: Source) -> Iterator[str]:
    """Modules of the list ``pure`` import no sockets, files, threads and clocks.

    A module of a package that decides is on the list, unless it imports one of them.
    """
    yield from (f"{name}: is on the list and not there" for name in source.pure - {*source.modules})
    for module in source.of(CORE):
        found = [i for i in source.imports(module) if i.target.split(".")[0] in IO_MODULES]
        if module.name in source.pure:
            for target, _, line, _ in found:
                yield f"{module.path}:{line}: imports {target}, but is on the list of pure modules"
        elif module.package in DECIDING and not found and not module.is_package:
            yield f"{module.path}: imports no I/O, so it belongs on the list of pure modules"


def plugins_start_without_libraries(source: Source) -> Iterator[str]:
    """A plugin, and what its hooks import, can be imported where its library is missing.

    Modules of a contributed plugin that only its commands or its factories import, when they run,
    are free to import the library at their top: there it was checked before.
    """
    found = {module.name for module in source.modules.values() if module.package == "plugins"}
    waiting = [name for name in source.modules if PLUGIN_ENTRY.fullmatch(name)]
    entries = {*waiting}
    while waiting:
        name = waiting.pop()
        found.add(name)
        # A hook runs when a program starts, also where nothing of the plugin is used.
        waiting += {
            target
            for target, _, _, at_top in source.imports(source.modules[name])
            if (at_top or name in entries) and target in source.modules and target not in found
            if target.split(".")[0] == CONTRIB
        }
    for module in (source.modules[name] for name in sorted(found)):
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
    if module.path.startswith(OUTBOX):
        return
    for target, _, line, _ in module.raw_imports():
        if target.split(".")[0] in {"sqlite3", "_sqlite3"}:
            yield f"{module.path}:{line}: imports {target}: open databases with {DATABASE}"


def contrib_uses_public_names(source: Source) -> Iterator[str]:
    """A contributed plugin imports what any other plugin could, for types as well."""
    for module in source.of(CONTRIB):
        for target, name, line, _ in source.imports(module, types=True):
            if target.split(".")[0] != CORE:
                continue
            known = source.modules.get(target)
            if target not in PUBLIC or known is None or (name and name not in known.public_names):
                yield f"{module.path}:{line}: {target} {name} is not public"


def the_core_names_no_plugin(source: Source) -> Iterator[str]:
    """What a plugin adds to commands and tasks it declares; the core reads what is declared."""
    for module in source.of(CORE):
        if module.package == "plugins":
            continue
        for number, line in enumerate(module.source.splitlines(), 1):
            found = PLUGIN_NAMES.search(line)
            if found and not any(text in line for text in NAMES_ALLOWED.get(module.path, ())):
                yield f"{module.path}:{number}: names {found[0]}"


def capabilities_are_declared(source: Source) -> Iterator[str]:
    """What a plugin object can do is an attribute or a protocol of its contract, never guessed."""
    members = {
        getattr(item, "name", None) or ast.unparse(getattr(item, "target", item))
        for path in CONTRACTS
        if path in source.modules
        for node in ast.walk(source.modules[path].tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in node.bases)
        for item in node.body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign)
    }
    for module in source.of(CORE):
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]
                ) if name in members and name != "__call__":  # which is not the plugin's
                    yield f"{module.path}:{node.lineno}: guesses whether there is {name!r}"


def files_are_nouns(source: Source) -> Iterator[str]:
    """A file is named for one thing."""
    for module in source.modules.values():
        if NO_NOUNS & set(module.name.split(".")):
            yield f"{module.path}: split it by noun"


Rule = Callable[[Source], Iterator[str]]
RULES: list[Rule] = [
    imports_go_down,
    imports_have_no_circle,
    the_root_is_not_imported,
    what_decides_is_pure,
    plugins_start_without_libraries,
    databases_have_one_library,
    contrib_uses_public_names,
    the_core_names_no_plugin,
    capabilities_are_declared,
    files_are_nouns,
]


@pytest.fixture(scope="module")
def real_source() -> Source:
    return real()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule, real_source: Source) -> None:
    assert len(real_source.modules) > 1
    problems = sorted(rule(real_source))
    assert not problems, "\n".join([rule.__doc__ or "", *problems])


def test_no_test_and_no_benchmark_opens_databases_with_another_library() -> None:
    """They would end the locks of the store that they look at."""
    paths = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    # Parsing all of them takes seconds.
    modules = [Module(ROOT, path) for path in paths if "sqlite3" in path.read_text("utf-8")]
    assert modules
    assert [] == [problem for module in modules for problem in _own_library(module)]


# The checks themselves: each finds what it is there for and lets pass what is allowed.

PURE = ["eventmq.broker.core"]
LAYERS = [["app"], ["plugins"], ["client", "broker"], ["wire"], ["job", "settings"], ["errors"]]
LAZY = "_WHERE = {'EventMQ': 'eventmq.app'}\ndef __getattr__(name): ...\n"


def source_of(root: Path, files: Mapping[str, str], pure: Sequence[str] = PURE) -> Source:
    for path, text in {"eventmq/__init__.py": LAZY, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Source(root, LAYERS, pure)


BAD: list[tuple[Rule, dict[str, str], str]] = [
    (imports_go_down, {"job.py": "import eventmq.app", "app.py": ""}, "above it"),
    (imports_go_down, {"job.py": "def f():\n  from . import app", "app.py": ""}, "job.py:2"),
    (imports_go_down, {"job.py": "from .settings import x", "settings.py": ""}, "sibling"),
    (imports_go_down, {"broker/core.py": "from eventmq.client import x"}, "sibling"),
    (imports_go_down, {"plugins/a.py": "from ..broker.core import x"}, "a plugin imports"),
    (imports_go_down, {"attic.py": ""}, "attic has no layer"),
    (imports_go_down, {"app.py": "from eventmq.attic import x"}, "has no layer"),
    (imports_go_down, {"job.py": "if not TYPE_CHECKING:\n  import eventmq.app"}, "job.py:2"),
    (imports_go_down, {"job.py": "if TYPE_CHECKING: ...\nelse:\n  import eventmq.app"}, ":3"),
    (imports_have_no_circle, {"wire/a.py": "from . import b", "wire/b.py": "from . import a"}, "a"),
    (
        imports_have_no_circle,
        {"wire/a.py": "from . import b", "wire/b.py": "def f():\n  import eventmq.wire.a"},
        "eventmq.wire.a",
    ),
    (
        imports_have_no_circle,
        {"wire/__init__.py": "from .a import x", "wire/a.py": "from . import y"},
        "",
    ),
    (
        imports_have_no_circle,
        {"wire/a.py": "if TYPE_CHECKING:\n  from .b import B", "wire/b.py": "from .a import A"},
        "eventmq.wire.a <- eventmq.wire.b",
    ),
    (the_root_is_not_imported, {"job.py": "import eventmq"}, "job.py:1"),
    (the_root_is_not_imported, {"app.py": "from eventmq import EventMQ"}, "takes EventMQ"),
    (the_root_is_not_imported, {"wire/a.py": "def f():\n  from .. import Job"}, "a.py:2"),
    (what_decides_is_pure, {"broker/core.py": "import zmq.backend"}, "imports zmq.backend"),
    (what_decides_is_pure, {"broker/core.py": "from os import urandom"}, "imports os"),
    (what_decides_is_pure, {"broker/core.py": "def f():\n  import time"}, "core.py:2"),
    (what_decides_is_pure, {"broker/core.py": "", "wire/chunk.py": "import re"}, "belongs on"),
    (what_decides_is_pure, {}, "eventmq.broker.core: is on the list and not there"),
    (plugins_start_without_libraries, {"plugins/a.py": "import dill"}, "imports dill"),
    (plugins_start_without_libraries, {"plugins/a.py": "try:\n  import zmq\nexcept E: ..."}, "zmq"),
    (plugins_start_without_libraries, {"../eventmq_contrib/a.py": "import pyspark.sql"}, "pyspark"),
    (
        plugins_start_without_libraries,
        {
            "../eventmq_contrib/a/__init__.py": "def hook():\n  from eventmq_contrib.a import b",
            "../eventmq_contrib/a/b.py": "from eventmq_contrib.a.c import x",
            "../eventmq_contrib/a/c.py": "import pyspark.sql",
        },
        "a/c.py:1: imports pyspark.sql",
    ),
    (databases_have_one_library, {"plugins/a.py": "def f():\n  import apsw.ext"}, "a.py:2"),
    (databases_have_one_library, {"job.py": "from sqlite3 import connect"}, "imports sqlite3"),
    (contrib_uses_public_names, {"../eventmq_contrib/a.py": "from eventmq import Core"}, "Core"),
    (contrib_uses_public_names, {"../eventmq_contrib/a.py": "import eventmq.nothing"}, "nothing"),
    (
        contrib_uses_public_names,
        {"sdk.py": "__all__ = ['Job']", "../eventmq_contrib/a.py": "from eventmq.sdk import x"},
        "eventmq.sdk x",
    ),
    (
        contrib_uses_public_names,
        {
            "job.py": "__all__ = ['Job']",
            "../eventmq_contrib/a.py": "if TYPE_CHECKING:\n  from eventmq.job import Job",
        },
        "a.py:2: eventmq.job Job",
    ),
    (the_core_names_no_plugin, {"job.py": "x = 1\nname == 'prefork'"}, "job.py:2: names prefork"),
    (the_core_names_no_plugin, {"app.py": "x = 1  # TLS"}, "names TLS"),
    (
        capabilities_are_declared,
        {
            "interfaces.py": "class Backend(Protocol):\n  local: bool\n  def put(self): ...",
            "app.py": "getattr(backend, 'local', False)",
        },
        "app.py:1: guesses whether there is 'local'",
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
        "eventmq/wire/sockets.py": "import zmq",
        "eventmq/client/state.py": 'def f():\n  """' + "\n" * 40 + '"""\n' + "  x\n" * 20,
        "eventmq/broker/runner.py": "import time\nimport eventmq.broker.core",
        "eventmq/broker/core.py": "# hot loop: its benchmark\n@d\ndef f():\n" + "  x\n" * 59,
        "eventmq/plugins/a.py": "import os, click\nfrom eventmq.client import state\n"
        "def f():\n  import dill",
        DATABASE: "import apsw",
        "eventmq/app.py": "import eventmq.plugins.a, threading",
        "eventmq_contrib/__init__.py": "",
        "eventmq_contrib/spark/__init__.py": "import csv\nfrom eventmq import EventMQ\n"
        "def hook():\n  from eventmq_contrib.spark import command",
        "eventmq_contrib/spark/command.py": "def f():\n  from eventmq_contrib.spark import table",
        "eventmq_contrib/spark/table.py": "import pyspark",
    }
    pure = ["broker.core", "client.state", "wire.chunk", "wire.numbers"]
    source = source_of(tmp_path, files, [f"eventmq.{name}" for name in pure])
    assert [] == [problem for rule in RULES for problem in rule(source)]
