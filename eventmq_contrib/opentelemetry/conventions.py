"""Names of spans and attributes: the semantic conventions for messaging of OpenTelemetry.

Those of version 1.44.0, "Semantic conventions for messaging spans", which is under development:
a later version may rename what is here, and nothing else has these names. EventMQ is no system that
the conventions know, so ``messaging.system`` is a value of its own, and what is particular to
EventMQ is in the namespace ``eventmq``.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BATCH_COUNT", "CREATE", "DESTINATION", "ERROR_TYPE", "JOB_ATTEMPT", "JOB_DELIVERY",
    "JOB_OUTCOME", "JOB_TASK", "JOB_WAIT", "MESSAGE_ID", "OPERATION_NAME", "OPERATION_TYPE",
    "PROCESS", "SCHEMA_URL", "SEND", "SYSTEM", "SYSTEM_NAME", "WAIT", "operation",
]  # fmt: skip

#: Where the version of these conventions is described.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

#: Of EventMQ alone: the task, the attempt from 1, the delivery where it is not the first, the end
#: of an attempt that is neither a success nor an error (``retry`` or ``cancelled``), and the
#: seconds that a job waited where no span says so.
JOB_TASK: Final = "eventmq.job.task"
JOB_ATTEMPT: Final = "eventmq.job.attempt"
JOB_DELIVERY: Final = "eventmq.job.delivery"
JOB_OUTCOME: Final = "eventmq.job.outcome"
JOB_WAIT: Final = "eventmq.job.wait"

SYSTEM_NAME: Final = "eventmq"

#: Operations: a job of a graph is made; one job or several are sent; a job waits until it starts
#: (not in the conventions, so it has no type); a job runs.
CREATE, SEND, WAIT, PROCESS = "create", "send", "wait", "process"

_TYPES = frozenset({CREATE, SEND, PROCESS})


def operation(name: str) -> dict[str, str]:
    """Return the attributes that all spans of an operation have."""
    attributes = {SYSTEM: SYSTEM_NAME, OPERATION_NAME: name}
    return {**attributes, OPERATION_TYPE: name} if name in _TYPES else attributes
