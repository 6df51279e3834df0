#!/bin/sh
# Run a Kafka broker with the settings of the variables KAFKA_…, as Kafka's public images do. Format empty storage first.
set -eu
settings=/tmp/broker.properties
awk 'BEGIN {
  for (name in ENVIRON) if (name ~ /^KAFKA_/) {
    key = tolower(substr(name, 7)); gsub("_", ".", key); print key "=" ENVIRON[name]
  }
}' >"$settings"
jars=$(echo /opt/ringlog/.cache/ringlog/jars/kafka-*)
java -Xmx128m -cp "$jars/*" kafka.tools.StorageTool format --ignore-formatted -t "$CLUSTER_ID" -c "$settings"
exec java -Dlog4j2.level=INFO -cp "$jars/*" kafka.Kafka "$settings"
