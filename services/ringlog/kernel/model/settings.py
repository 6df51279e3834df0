"""The cluster's settings: names, defaults and bounds. They are part of the state, so all replicas use the same values.

The state stores only changed values; ``setting`` returns the effective value. All values are integers, in the unit of
the rule. ``broken_setting`` checks the bounds of each setting and the few rules between two settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.values import Micros, Value


class SettingRule(Value):
    """Default and bounds (both included) of a setting, in ``unit``."""

    default: int
    minimum: int
    maximum: int
    unit: str
    meaning: str


_DAY_US: Final = 86_400_000_000
_CENTURY_US: Final = 36_525 * _DAY_US
"""The maximum to which operators may raise the limits after a fast clock: see ``commands.cdc.clock``."""

_TABLET_BYTES: Final = 5 << 30

SETTINGS: Final[dict[str, SettingRule]] = {
    "balance_load_cpu_percent": SettingRule(0, 0, 33, "per cent", "share of processor time in the load of a tablet"),
    "balance_load_reads_percent": SettingRule(0, 0, 33, "per cent", "share of reads in the load of a tablet"),
    "balance_load_writes_percent": SettingRule(0, 0, 33, "per cent", "share of writes in the load of a tablet"),
    "balance_resizes_max": SettingRule(10, 1, 1_000, "tables", "new decisions to split or merge in one plan"),
    "balance_table_slack_percent": SettingRule(
        25, 0, 1_000, "per cent", "excess of a table over its even share of a node, without one tablet"
    ),
    "balance_tablet_bytes": SettingRule(
        _TABLET_BYTES, 1 << 10, 1 << 48, "bytes", "target size of a tablet; a tablet splits above twice this size"
    ),
    "balance_tablet_cpu_us": SettingRule(
        0, 0, 1 << 48, "microseconds per second", "target processor time of a tablet; 0: does not split tables"
    ),
    "balance_tablet_reads": SettingRule(
        0, 0, 1 << 48, "reads per second", "target reads of a tablet; 0: reads do not split tables"
    ),
    "balance_tablet_writes": SettingRule(
        0, 0, 1 << 48, "writes per second", "target writes of a tablet; 0: writes do not split tables"
    ),
    "balance_tablets_per_shard_goal": SettingRule(
        100, 1, 10_000, "tablets", "mean of a rack above which tables get fewer tablets"
    ),
    "balance_tablets_per_shard_min": SettingRule(
        10, 1, 1_000, "tablets", "minimum number of tablets of a table on the mean shard, for any size"
    ),
    "balance_threshold_permille": SettingRule(
        10, 0, 1_000, "per mille", "difference of loads in bytes that counts as balanced"
    ),
    "cdc_generation_lead_us": SettingRule(
        2_000_000, 0, _DAY_US, "microseconds", "minimum distance of a new generation from the clock of its author"
    ),
    "cdc_horizon_ahead_max_us": SettingRule(
        60_000_000,
        1_000_000,
        _CENTURY_US,
        "microseconds",
        "maximum lead of a write lease over the validator's clock",
    ),
    "cdc_horizon_lead_us": SettingRule(
        10_000_000, 100_000, _CENTURY_US, "microseconds", "lead of a CDC writer's lease over its clock"
    ),
    "cdc_leeway_us": SettingRule(
        5_000_000, 0, _DAY_US, "microseconds", "allowed distance of a write's timestamp from its append time"
    ),
    "cdc_timestamp_ahead_max_us": SettingRule(
        120_000_000,
        1_000_000,
        _CENTURY_US,
        "microseconds",
        "maximum lead of a generation's start over the validator's clock",
    ),
    "gate_prepared": SettingRule(
        1, 0, 1, "", "1: prepared ends when a quorum of each group acknowledged; 0: when the gaining nodes did"
    ),
    "history_entries": SettingRule(10_000, 100, 1_000_000, "entries", "applied entries in the history"),
    "operations_admitted_max": SettingRule(8, 1, 10, "operations", "operations in flight, including waiting ones"),
    "operations_concurrent_max": SettingRule(4, 1, 10, "operations", "operations in flight that are past requested"),
    "operations_kept_max": SettingRule(100, 1, 10_000, "operations", "ended operations in the state"),
    "ranges_max": SettingRule(65_536, 1, 1_048_576, "ranges", "ranges of one placement"),
    "snapshot_bytes": SettingRule(
        50_000_000, 0, 1 << 48, "bytes", "size of the entries between two snapshots; 0: not by size"
    ),
    "snapshot_entries": SettingRule(
        10_000,
        0,
        10_000_000,
        "entries",
        "number of entries between two snapshots; 0: not by number",
    ),
    "stream_tries_max": SettingRule(
        200, 1, 1_000_000, "tries", "requests for the rows of a stream before an operator must decide"
    ),
    "tablet_stream_reads_per_node_max": SettingRule(
        0, 0, 100_000, "weights", "transitions that read from one node at once; 0: as its shards allow"
    ),
    "tablet_stream_reads_per_shard_max": SettingRule(
        2, 1, 1_000, "weights", "transitions of tablets that read from one shard at once"
    ),
    "tablet_stream_writes_per_node_max": SettingRule(
        0, 0, 100_000, "weights", "transitions that write to one node at once; 0: as its shards allow"
    ),
    "tablet_stream_writes_per_shard_max": SettingRule(
        2, 1, 1_000, "weights", "transitions of tablets that write to one shard at once"
    ),
    "tablet_streams_max": SettingRule(1_000, 1, 1_000_000, "weights", "transitions of tablets that stream at once"),
    "tablets_initial_scale": SettingRule(
        10, 1, 1_000, "tablets", "minimum mean number of replicas of a new table on a shard"
    ),
    "tablets_per_table_max": SettingRule(65_536, 1, 1_048_576, "tablets", "tablets of one table"),
    "tokens_per_node_max": SettingRule(1_024, 1, 16_384, "tokens", "tokens that one node may own"),
    "verdicts_lead_us": SettingRule(
        2_000_000,
        100_000,
        _CENTURY_US,
        "microseconds",
        "lead of the validation watermark over a node's clock; a schema change counts after this time at most",
    ),
    "zone_moves_max": SettingRule(
        65_536, 1, 10_000_000, "partitions", "partitions of all zones with a pending move at one time"
    ),
}

_NOT_ABOVE: Final = (
    ("cdc_horizon_ahead_max_us", "cdc_timestamp_ahead_max_us"),
    ("cdc_horizon_lead_us", "cdc_horizon_ahead_max_us"),
    ("cdc_generation_lead_us", "cdc_timestamp_ahead_max_us"),
    ("operations_concurrent_max", "operations_admitted_max"),
    ("tokens_per_node_max", "ranges_max"),
    ("verdicts_lead_us", "cdc_horizon_ahead_max_us"),
)
"""Pairs of settings whose first must not exceed the second, or a horizon could keep every generation from starting."""


def setting(state: ClusterState, name: str) -> int:
    """Return the effective value; ``name`` must be one of ``SETTINGS``."""
    return state.settings.get(name, SETTINGS[name].default)


def leeway_at(state: ClusterState, generation: Generation) -> Micros:
    """Return the allowed lateness of writes to the generation that ends where ``generation`` starts.

    It is the value at the commit, also if the setting has changed. Writers close the earlier generation once all append
    times are past the start by that value. A later, greater value must not let a write into a closed generation.
    """
    return setting(state, "cdc_leeway_us") if generation.leeway is None else generation.leeway


def broken_setting(values: Mapping[str, int]) -> str | None:
    """Return the first setting and rule that ``values`` break, or None. Settings without a value have their default."""
    for name, value in sorted(values.items()):
        rule = SETTINGS[name]
        if not rule.minimum <= value <= rule.maximum:
            return f"{name}: {value} is not between {rule.minimum} and {rule.maximum} {rule.unit}"
    for low, high in _NOT_ABOVE:
        lower, upper = (values.get(name, SETTINGS[name].default) for name in (low, high))
        if lower > upper:
            return f"{low}: {lower} is above {high}, {upper}"
    return None


assert broken_setting({name: rule.default for name, rule in SETTINGS.items()}) is None, "the defaults satisfy the rules"
