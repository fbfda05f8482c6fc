"""Names of spans and attributes: the semantic conventions for messaging of OpenTelemetry.

They follow version 1.44.0, "Semantic conventions for messaging spans", which is under development:
a later version may rename them. Only this module has these names. The conventions do not know
EventMQ, so ``messaging.system`` has a custom value, and attributes of EventMQ alone are in the
namespace ``eventmq``.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BATCH_COUNT", "CREATE", "DESTINATION", "ERROR_TYPE", "JOB_ATTEMPT", "JOB_DELIVERY",
    "JOB_OUTCOME", "JOB_TASK", "JOB_WAIT", "MESSAGE_ID", "OPERATION_NAME", "OPERATION_TYPE",
    "PROCESS", "SCHEMA_URL", "SEND", "SYSTEM", "SYSTEM_NAME", "WAIT", "operation",
]  # fmt: skip

#: URL of the schema of these conventions.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

#: Attributes of EventMQ alone: the task; the attempt, from 1; the delivery, if it is not the first;
#: the outcome of an attempt that is neither a success nor an error (``retry`` or ``cancelled``);
#: and the seconds that a job waited, if no span shows it.
JOB_TASK: Final = "eventmq.job.task"
JOB_ATTEMPT: Final = "eventmq.job.attempt"
JOB_DELIVERY: Final = "eventmq.job.delivery"
JOB_OUTCOME: Final = "eventmq.job.outcome"
JOB_WAIT: Final = "eventmq.job.wait"

SYSTEM_NAME: Final = "eventmq"

#: Operations: creating a job of a graph, sending one or more jobs, waiting for the start of a job
#: (not in the conventions, so it has no type), and running a job.
CREATE, SEND, WAIT, PROCESS = "create", "send", "wait", "process"

_TYPES = frozenset({CREATE, SEND, PROCESS})


def operation(name: str) -> dict[str, str]:
    """Return the attributes that all spans of an operation have."""
    attributes = {SYSTEM: SYSTEM_NAME, OPERATION_NAME: name}
    return {**attributes, OPERATION_TYPE: name} if name in _TYPES else attributes
