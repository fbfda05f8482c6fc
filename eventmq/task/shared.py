"""Shared tasks, which do not belong to an app: every app of the process has them.

For libraries, and for modules that the app's module imports. A worker's app has all shared tasks of
the imported modules; they are submitted through the only app of the process.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from eventmq.errors import NotAllowed, SettingsError
from eventmq.task.options import TaskOptions
from eventmq.task.task import AsyncStreamTask, AsyncTask, StreamTask, Task, TaskApp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator

    from typing_extensions import Unpack

    from eventmq.task.options import TaskKeywords

__all__ = [
    "Decorator",
    "SharedTaskApp",
    "TaskTable",
    "add_task",
    "declare",
    "register_app",
    "shared_task",
]

P = ParamSpec("P")

R = TypeVar("R")

if TYPE_CHECKING:
    #: An async generator function.
    AsyncStream = Callable[P, AsyncGenerator[Any, Any]]


#: Shared tasks by name; global, since no app owns them.
_declared: dict[str, Task[Any, Any]] = {}

#: The apps of this process.
_apps: weakref.WeakSet[SharedTaskApp] = weakref.WeakSet()


@overload
def shared_task(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...


@overload
def shared_task(function: AsyncStream[P], /) -> AsyncStreamTask[P]: ...


@overload
def shared_task(function: Callable[P, Generator[Any, Any, R]], /) -> StreamTask[P, R]: ...


@overload
def shared_task(function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def shared_task(**options: Unpack[TaskKeywords]) -> Decorator: ...


def shared_task(function: Any = None, /, **options: Any) -> Any:
    """Declare a task that does not belong to an app: all apps of the process have it.

    Args:
        function: The function, if there are no options.
        **options: See `eventmq.task.TaskOptions`. Options that are not set come from the
            ``task_defaults`` of the app that submits the task.

    Raises:
        SettingsError: A value is not allowed.
    """
    declared = TaskOptions.read(options)

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        module = function.__module__
        task = declare(function, declared, lambda: _app_for(module))
        task.shared_options = options
        add_task(_declared, task)
        return task

    return decorate if function is None else decorate(function)


class Decorator(Protocol):
    """Result of ``@app.task(...)`` and ``@shared_task(...)`` with options."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: AsyncStream[P], /) -> AsyncStreamTask[P]: ...

    @overload
    def __call__(self, function: Callable[P, Generator[Any, Any, R]], /) -> StreamTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


def declare(
    function: Callable[..., Any], options: TaskOptions, find_app: Callable[[], TaskApp]
) -> Task[Any, Any]:
    """Return a task of the class that matches the function."""
    inner = inspect.unwrap(function)
    kind: type[Task[Any, Any]] = Task
    if inspect.iscoroutinefunction(inner):
        kind = AsyncTask
    elif inspect.isasyncgenfunction(inner):
        kind = AsyncStreamTask
    elif inspect.isgeneratorfunction(inner):
        kind = StreamTask
    return kind(function, options, find_app)


def add_task(tasks: dict[str, Task[Any, Any]], task: Task[Any, Any]) -> None:
    """Add a task to a table by its name; declaring the same function again replaces it.

    Raises:
        SettingsError: Another function has the name.
    """
    existing = tasks.get(task.name)
    if existing is not None and _path(existing) != _path(task):
        raise SettingsError(
            f"two tasks are called {task.name!r}: {_path(existing)} and {_path(task)}; "
            "give one of them another name: name=..."
        )
    tasks[task.name] = task


def _path(task: Task[Any, Any]) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"


class TaskTable(Mapping[str, Task[Any, Any]]):
    """The tasks of an app and the shared ones, by name; always up to date.

    Args:
        own: The tasks of the app.
        app: The app, which submits the shared tasks of this table.
    """

    def __init__(self, own_tasks: Mapping[str, Task[Any, Any]], app: TaskApp) -> None:
        self._own_tasks = own_tasks
        self._app = app

    def __getitem__(self, name: str) -> Task[Any, Any]:
        task = self._own_tasks.get(name)
        return _declared[name].bound_to(self._app) if task is None else task

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._own_tasks, *_declared]))

    def __len__(self) -> int:
        return len(self._own_tasks.keys() | _declared.keys())


class SharedTaskApp(TaskApp, Protocol):
    """An app that can submit shared tasks."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def names_module(self, module: str) -> bool:
        """Return whether the app's setting ``imports`` names the module."""


def register_app(app: SharedTaskApp) -> None:
    """Register an app that shared tasks may be submitted through."""
    _apps.add(app)


def _app_for(module: str) -> TaskApp:
    """Return the app that submits: the only one, or the only one that names the module.

    Raises:
        NotAllowed: There is no app, or several are possible.
    """
    apps = [app for app in _apps if not app.closed]
    if not apps:
        raise NotAllowed("a shared task is submitted through an app; make one first: EventMQ(...)")
    if len(apps) > 1:
        apps = [app for app in apps if app.names_module(module)] or apps
    if len(apps) > 1:
        raise NotAllowed(
            f"{len(apps)} apps of this process have the shared tasks of {module}; choose one: "
            "app.tasks[name].delay(...), or name the module in the imports of one app"
        )
    return apps[0]
