"""Manual changes of topic settings, like an operator's."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.system.agents_world import until

DEADLINE_S = 30.0


def alter(admin: AdminClient, topic: str, name: str, value: str) -> None:
    """Set one setting of a topic and wait until the broker has it, because the controller answers earlier."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def shown() -> str:
        (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return str(found.result(DEADLINE_S)[name].value)

    until(lambda: shown() == value, f"{topic} to have {name}={value}")
