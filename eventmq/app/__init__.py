"""The app: the only place where settings, plugins, client, broker and worker are put together.

`application.EventMQ` is what users see; `runner_wiring` makes the parts at their first use,
`broker` and `runner_worker` make what the command line runs, `runner_embedded` runs both inside a
``memory://`` app, and `loading` is how another process gets at the app's tasks.
"""

from __future__ import annotations

from eventmq.app.app import EventMQ

__all__ = ["EventMQ"]
