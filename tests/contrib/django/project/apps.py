"""Apps of EventMQ that the settings name."""

from __future__ import annotations

from eventmq import EventMQ

#: Nothing listens there.
away = EventMQ("away", broker="tcp://127.0.0.1:9", submit_timeout=0.3)

#: Its broker starts with the first task, which may take long on a busy machine.
memory = EventMQ("memory", broker="memory://", submit_timeout=60.0)

not_an_app = object()
