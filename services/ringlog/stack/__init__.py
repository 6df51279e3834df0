"""A real Kafka broker and a real Redis on one machine, without containers.

``Stack(data_dir).up()`` returns their addresses as soon as both accept work. All their data is in one folder. One
detached supervisor owns the two child processes; if it ends for any reason, they end. Only this package starts or stops
a broker.

Except for ``cli``, the modules need only the standard library, because set-up uses them before anything is installed.
The Kafka client is imported at the first readiness check of a broker.
"""

from ringlog.stack.commands import Stack
from ringlog.stack.errors import StackError
from ringlog.stack.layout import ChildStatus, StackInfo, StackStatus

__all__ = ["ChildStatus", "Stack", "StackError", "StackInfo", "StackStatus"]
