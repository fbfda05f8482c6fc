"""Each public name of a kit is on its page, with an example that runs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType

import pytest

from eventmq.app import EventMQ

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = DOCS.parent / "examples"
PAGE = (DOCS / "reference" / "kits.rst").read_text(encoding="utf-8")

#: Package -> where its part of the page ends.
KITS = {"eventmq.cli": "Gateways", "eventmq.gateway": "Queue stores"}
EVERY = pytest.mark.parametrize("kit", KITS)

#: Packages whose names are on several pages, and need no example each.
LISTED = ("eventmq.engine", "eventmq.fsck", "eventmq.sdk.events", "eventmq.testing")

#: The app of the examples.
SHOP = "from eventmq import EventMQ\napp = EventMQ('shop')\n\n@app.task\ndef send(): ...\n"

#: Page -> the examples whose files it shows.
SHOWN = {
    "write-a-plugin": ("command", "order", "results", "retry", "serializer", "trigger"),
    "gateways": ("gateway",),
}


def page(kit: str) -> str:
    """Return the part of a kit; the first one begins with the page."""
    begin = 0 if kit == "eventmq.cli" else PAGE.index("\nGateways\n---")
    return PAGE[begin : PAGE.index(f"\n{KITS[kit]}\n---")]


def blocks(kit: str) -> str:
    """Return the examples of a page as one program."""
    found = re.findall(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page(kit))
    return "\n".join(map(textwrap.dedent, found))


@pytest.fixture
def broker():
    """The address of a broker in a thread."""
    owner = EventMQ("owner", broker="tcp://127.0.0.1:1")
    runner = owner.make_broker(binds={"main": "tcp://127.0.0.1:0"}, store="memory")
    runner.bind()
    thread = threading.Thread(target=runner.run)
    thread.start()
    yield runner.addresses["main"]
    runner.stop()
    thread.join(10)
    owner.close()


@EVERY
def test_each_name_is_documented_and_in_an_example(kit: str) -> None:
    names = importlib.import_module(kit).__all__
    directive = rf"^\.\. (?:auto\w+|py:\w+):: {re.escape(kit)}\.(\w+)$"
    assert sorted(names) == sorted(re.findall(directive, page(kit), re.MULTILINE))
    examples = re.sub(r"^from .*?(\)|\n\n)", "", blocks(kit), flags=re.MULTILINE | re.DOTALL)
    assert [] == [name for name in names if not re.search(rf"\b{name}\b", examples)]


@pytest.mark.parametrize("package", LISTED)
def test_each_name_has_an_entry_on_a_page(package: str) -> None:
    """The suites for plugin authors stand in a table: what they ask is not read name by name."""
    names = {*importlib.import_module(package).__all__}
    assert set() == {name for name in names if not name.endswith("Suite")} - entries(package)


def entries(package: str) -> set[str]:
    """Return the names of a package that have an entry on a page."""
    found = set()
    for path in DOCS.rglob("*.rst"):
        module = ""
        for line in path.read_text("utf-8").splitlines():
            match = re.match(r"\.\. (currentmodule|automodule|auto\w+|py:\w+):: ([\w.]+)", line)
            if match and match[1] in {"currentmodule", "automodule"}:
                module = match[2]
            elif match:
                found.add(match[2] if "." in match[2] else f"{module}.{match[2]}")
    return {name.rpartition(".")[2] for name in found if name.rpartition(".")[0] == package}


@EVERY
def test_names_are_sorted_and_load_when_they_are_used(kit: str) -> None:
    module = importlib.import_module(kit)
    upper = [name for name in module.__all__ if name.isupper()]
    classes = [name for name in module.__all__ if name[0].isupper() and not name.isupper()]
    others = [name for name in module.__all__ if name.islower()]
    assert [*sorted(upper), *sorted(classes), *sorted(others)] == module.__all__
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing
    code = f"import sys, {kit}; print(sorted({{'asyncio', 'click', 'zmq'}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"


@EVERY
def test_the_examples_run(
    kit: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["eventmq", "version"])
    module = ModuleType("page")
    module.broker = broker
    monkeypatch.setitem(sys.modules, "page", module)
    try:
        exec(compile(blocks(kit), "kits.rst", "exec"), vars(module))
        if kit == "eventmq.gateway":
            serve_and_stop(module.make)
    finally:
        sys.modules.pop("shop", None)


def serve_and_stop(make) -> None:
    """Start the gateway of the page, wait for its loop, and stop it."""
    from eventmq.interfaces import PluginContext
    from eventmq.testing import FakeClock

    with EventMQ("page", broker="tcp://127.0.0.1:1") as app:
        gateway = make(PluginContext("echo", {"bind": "tcp://127.0.0.1:0"}, FakeClock(), app))
        assert gateway.start()[0].startswith("tcp://127.0.0.1:")
        gateway.stop(1.0)
        assert not gateway.running()
        assert gateway.beats.count


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_of_examples_shows_their_modules(name: str) -> None:
    """Each file that is shown is there, and each module and the test of what it provides is."""
    text = (DOCS / "howto" / "extend" / f"{name}.rst").read_text(encoding="utf-8")
    shown = re.findall(r"literalinclude:: \.\./\.\./\.\./examples/(\S+)", text)
    assert all((EXAMPLES / path).is_file() for path in shown)
    for example in SHOWN[name]:
        modules = (EXAMPLES / f"eventmq-{example}-example").glob("src/*/[a-z]*.py")
        assert {path.relative_to(EXAMPLES).as_posix() for path in modules} <= {*shown}
        assert any(path.startswith(f"eventmq-{example}-example/tests/") for path in shown)
