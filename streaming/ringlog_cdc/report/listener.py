"""Listener of Spark's reports on one streaming query."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession


class Listener:
    """Listener of one streaming query's progress, directly in the JVM's interface.

    PySpark's own listener fetches every number of an event from the JVM one by one, which takes as long as ten thousand
    rows. This one fetches the event's JSON at once.
    """

    def __init__(self, session: SparkSession, query: str, reported: Callable[[Mapping[str, Any]], None]) -> None:
        """Register the listener.

        Args:
            session: Spark session. It may run several queries.
            query: Name of the query.
            reported: Called with the progress of each batch.
        """
        jvm: Any = session.sparkContext._jvm
        ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
        self._query = query
        self._reported = reported
        self._listeners: Any = session._jsparkSession.streams()
        self._listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._listeners.addListener(self._listener)

    def close(self) -> None:
        """Remove the listener."""
        self._listeners.removeListener(self._listener)

    def onQueryProgress(self, event: Any) -> None:
        """Process the progress of a batch."""
        progress = json.loads(event.progress().json())
        if progress["name"] == self._query:
            self._reported(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Ignore: the job reports its start."""

    def onQueryIdle(self, event: Any) -> None:
        """Ignore: an idle job reports nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Ignore: the job reports its end."""

    class Java:
        """Py4J's declaration of the implemented interface."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
