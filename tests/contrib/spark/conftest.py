"""One session of Spark for all tests of this folder: it takes ten seconds to start.

It starts while the tests run that do not need it; they come first.

EVENTMQ_TEST_JAVA says on which Java: ``packaged``, that of the extra ``test``, which is meant where
nothing is said; or ``system``, the first of JAVA_HOME and PATH.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from eventmq_contrib.spark.analyses.audit import audit
from eventmq_contrib.spark.analyses.capacity import capacity
from eventmq_contrib.spark.analyses.stats import stats
from eventmq_contrib.spark.atomic import write_table
from eventmq_contrib.spark.java import find_java, packaged_java, write_home
from eventmq_contrib.spark.journal import read_journal
from eventmq_contrib.spark.session import spark_session
from tests.contrib.spark.histories import story, write_journal
from tests.support.page_files import ROOT
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession


HERE = Path(__file__).parent

#: Fixtures that start what runs for long beside the tests of this folder.
BESIDE = ("starting", "followed")

#: Tests that change where a Java is found, which what starts must not see.
OF_JAVA = HERE / "test_java.py"

#: Settings for tables of some hundred rows: to plan them anew and to compile code for each costs
#: more than it saves. A test that is to have them as users have them asks for `as_users`.
SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}

#: Seconds for a test that uses Spark, on a machine that has much else to do.
TIMEOUT = 240


class Followed(NamedTuple):
    """A stream that runs, its folder (``journal``, ``out``, ``err``, ``tmp``), and its rows."""

    process: subprocess.Popen[bytes]
    folder: Path
    rows: list[dict[str, Any]]

    def kill_at_work(self) -> None:
        """Kill it in the middle of a batch, unless another test has done so."""
        checkpoint = self.folder / "out" / "_checkpoint"

        def batches(what: str) -> int:
            return len(list((checkpoint / what).glob("[0-9]*")))

        if self.process.poll() is None:
            in_batch = lambda: batches("offsets") > batches("commits") >= 1  # noqa: E731
            until(in_batch, "the middle of a batch", TIMEOUT - 20.0)
        self.kill()

    def kill(self) -> None:
        """Kill it with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The Java of these tests, also of the processes that they start."""
    choice = os.environ.get("EVENTMQ_TEST_JAVA", "packaged")
    assert choice in {"packaged", "system"}, "EVENTMQ_TEST_JAVA is packaged or system"
    with pytest.MonkeyPatch.context() as patch:
        # Tests ask little of much: a JVM that compiles less is there in a third of the time.
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        if choice == "packaged":
            packaged = packaged_java()
            assert packaged is not None, "the extra test brings a Java: pip install -e '.[test]'"
            home = write_home(packaged, tmp_path_factory.mktemp("java"))
            patch.setenv("JAVA_HOME", str(home))
        else:
            assert not find_java().packaged, "there is no Java on this system"
        yield


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Start(threading.Thread):
    """Starts a session and lets it load what most tests need.

    Args:
        config: Of Spark.
        folder: Folder of its files.
    """

    def __init__(self, config: dict[str, str], folder: Path) -> None:
        super().__init__(name="start of Spark", daemon=True)
        self._config, self._folder = config, folder
        self._session: SparkSession | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self._session = spark_session("tests", master="local[2]", config=self._config)
            warm(self._session, self._folder)
        except Exception as error:  # noqa: BLE001 - raised where the session is wanted
            self._error = error

    def session(self) -> SparkSession:
        """Wait for the session; return it as that of this thread."""
        self.join()
        if self._error is not None:
            raise self._error
        session = self._session
        assert session is not None
        jvm: Any = session._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        return session


def warm(session: SparkSession, folder: Path) -> None:
    """Use every feature once, so that modules are loaded for all tests."""
    write_journal(folder / "journal", story(Random(1), "b", jobs=9).rows)
    events = read_journal(session, folder / "journal")
    audit(events)
    stats(events).collect()
    capacity(events).collect()
    write_table(events, folder / "table")


@pytest.fixture(scope="session")
def starting(java: None, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """The start of the session: two cores, two parts of a shuffle, no pages, nothing left."""
    folder = tmp_path_factory.mktemp("spark")
    start = Start(
        {
            **SMALL,
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
            "spark.local.dir": str(folder / "local"),
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(free_port()),
            "spark.ui.showConsoleProgress": "false",
        },
        folder,
    )
    start.start()
    return start


@pytest.fixture(scope="session")
def spark(starting: Start) -> Iterator[SparkSession]:
    """The session of all tests."""
    session = starting.session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect(spark: SparkSession) -> str:
    """The address at which the session takes clients of Spark Connect."""
    return f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"


@pytest.fixture(scope="session")
def followed(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """A stream as people start it, which has much to do and is to be killed before it has done it.

    It makes a group of processes with its JVM and its Python.
    """
    folder = tmp_path_factory.mktemp("followed")
    rows = story(Random(2), "b", jobs=500, damage=False).rows
    write_journal(folder / "journal", rows, size=150)
    command = [
        sys.executable, "-m", "eventmq", "-q", "-p", "eventmq_contrib.spark", "spark", "stream",
        "--journal", "journal", "--out", "out", "--at-once", "20", "--trigger", "2",
        "--master", "local[1]",
    ]  # fmt: skip
    (folder / "tmp").mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            command, cwd=folder, env=env,
            stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
        )  # fmt: skip
    followed = Followed(process, folder, rows)
    yield followed
    followed.kill()


@pytest.fixture
def as_users(spark: SparkSession) -> Callable[[], AbstractContextManager[None]]:
    """In tests that use it, Spark plans and compiles with its own defaults."""

    @contextlib.contextmanager
    def as_users() -> Iterator[None]:
        for name in SMALL:
            spark.conf.unset(name)
        yield
        for name, value in SMALL.items():
            spark.conf.set(name, value)

    return as_users


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that use Spark more time, and let the others run while it starts.

    The first of them waits for the start of Spark. A limit that strikes while the JVM is asked
    something leaves a session that cannot go on.
    """
    indexes = [index for index, item in enumerate(items) if item.path.parent == HERE]
    items_here = sorted((items[index] for index in indexes), key=turn)
    for item in items_here:
        if names_of(item) & {"spark", *BESIDE}:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
    for index, item in zip(indexes, items_here, strict=True):
        items[index] = item
    fixtures = {name for item in items_here for name in names_of(item)}
    if items_here:
        items_here[0].fixturenames[:0] = [name for name in BESIDE if name in fixtures]


def turn(item: pytest.Item) -> int:
    """Return where a test comes: those that need no Spark are first.

    What runs beside is ended as soon as there is a session to look at it with.
    """
    names = names_of(item)
    if "followed" in names:
        return 1
    return 2 if "spark" in names or item.path == OF_JAVA else 0


def names_of(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))
