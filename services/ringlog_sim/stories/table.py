"""The stories of each profile.

A run gets the first story of its profile that draws an action. Stories of ``ANYWHERE`` are added, except to a story
that is alone. Runs with a scenario (``scenarios``, ``rarities``) have no story.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ringlog.kernel.values import replace
from ringlog_sim.devices.world import MS
from ringlog_sim.families import principals
from ringlog_sim.shape import RACK_PROFILES, RACK_SHARE
from ringlog_sim.stories import (
    balancing,
    column_rename,
    disk_rows,
    images,
    members,
    moving_tablets,
    peer_logs,
    pipeline_faults,
    truncation,
    zones,
)
from ringlog_sim.stories.story import Drawn, Story, StorySetting


def draw_racks(setting: StorySetting) -> list[Drawn]:
    """Draw a keyspace whose replicas must be in different racks, for a part of the longer runs."""
    chance = setting.chance("racks")
    if setting.profile not in RACK_PROFILES or not chance.happens(RACK_SHARE):
        return []
    return [(chance.between(0, 2_000) * MS, "in_racks", (chance.pick([2, 2, 3]),))]


_COLUMNS = Story(9_000, column_rename.LASTS, column_rename.draw_column_rename)
_TABLETS = Story(6_000, moving_tablets.LASTS, moving_tablets.draw_moving_tablets)
_IMAGES = Story(4_000, images.LASTS, images.draw_images)
_LOSS = Story(5_000, pipeline_faults.LASTS, pipeline_faults.draw_lost_checkpoint)
_ZONES = Story(10_000, zones.LASTS, zones.draw_zones, faults_after=False, is_alone=True)
_ROWS = Story(11_000, disk_rows.LASTS, disk_rows.draw_disk_rows, faults_after=False, is_alone=True)
_PARTITIONS = Story(15_000, 0, pipeline_faults.draw_added_partitions, faults_after=False)

STORIES: Final[Mapping[str, tuple[Story, ...]]] = {
    truncation.PROFILE: (),
    principals.PROFILE: (),
    zones.PROFILE: (
        replace(_ZONES, draw=zones.draw_lost_majority, seeds=zones.loses_majority, founded=zones.LOSERS),
        replace(_ZONES, draw=zones.draw_lost_voters, seeds=zones.loses_voters, founded=zones.WIDE),
        _ZONES,
    ),
    disk_rows.PROFILE: (
        replace(
            _ROWS,
            lasts=disk_rows.LASTS_AHEAD,
            draw=disk_rows.draw_one_ahead,
            seeds=disk_rows.one_is_ahead,
            founded=3,
            factor=3,
        ),
        _ROWS,
    ),
    peer_logs.PROFILE: (Story(12_000, peer_logs.LASTS, peer_logs.draw_peer_logs, faults_after=False, is_alone=True),),
    members.PROFILE: (Story(13_000, members.LASTS, members.draw_member_changes, faults_after=False),),
    images.PROFILE: (
        _COLUMNS,
        Story(4_000, max(images.LASTS, pipeline_faults.LASTS), images.draw_images_or_loss, is_alone=True),
    ),
    column_rename.PROFILE: (_COLUMNS, _IMAGES, _LOSS, _TABLETS),
    moving_tablets.PROFILE: (_COLUMNS, _TABLETS),
}
"""The stories of profiles with their own stories."""
OTHERS: Final = (_COLUMNS, _IMAGES, _LOSS, _TABLETS, _PARTITIONS)
"""Stories of all other profiles."""
ANYWHERE: Final = (
    Story(8_000, truncation.LASTS, truncation.draw_truncations, faults_after=False),
    Story(14_000, 0, draw_racks, faults_after=False),
    Story(7_000, balancing.LASTS, balancing.draw_balancing, faults_after=False),
    Story(16_000, principals.LASTS, principals.draw_principals),
)


def stories_of(profile: str, seed: int) -> tuple[Story, ...]:
    """Return the stories that a run of the profile may have."""
    return tuple(story for story in STORIES.get(profile, OTHERS) if story.seeds(seed))


def drawn_stories(setting: StorySetting) -> Iterator[tuple[Story, list[Drawn]]]:
    """Yield the stories of a run, each with its actions."""
    for story in stories_of(setting.profile, setting.seed):
        if drawn := story.draw(setting):
            yield story, drawn
            if story.is_alone:
                return
            break
    for story in ANYWHERE:
        if drawn := story.draw(setting):
            yield story, drawn
