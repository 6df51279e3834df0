"""A real Kafka broker and a real Redis on one machine, without containers.

``Stack(data_dir).up()`` answers with addresses as soon as both take work; everything they keep lies in one data folder.
One detached supervisor owns the two children: when it dies, however it dies, they die. Nothing outside this room starts
or stops a broker. The modules here need only the standard library, so that set-up can use them before anything is
installed; the Kafka client is imported when a broker is first asked whether it is ready.
"""

from ringlog.stack.commands import Stack
from ringlog.stack.errors import StackError
from ringlog.stack.layout import ChildStatus, StackInfo, StackStatus

__all__ = ["ChildStatus", "Stack", "StackError", "StackInfo", "StackStatus"]
