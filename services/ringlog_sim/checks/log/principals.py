"""Only authorized principals change the log, and the validator refuses no authorized one.

The model has the principals of each epoch, from the commands of the log. The key ring of the run
tells who signed a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringlog.kernel.commands.control.principals import (
    CreatePrincipal,
    GrantRole,
    RevokePrincipal,
    RevokeRole,
    RotatePrincipalKey,
)
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Value, replace
from ringlog.wire.commands import decode_command
from ringlog.wire.records import CommandRequest
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.log.answers import NOOP_DIGEST, requests_by_key
from ringlog_sim.devices.keys import KeyRing, Signer, is_agent
from ringlog_sim.devices.memo import cached_result

if TYPE_CHECKING:
    from ringlog_sim.devices.broker import Partition
    from ringlog_sim.simulation import Simulation

Roles = dict[str, tuple[str, ...]]
"""Role to its keyspaces; none: all."""
REFUSALS = ("not_authenticated", "not_authorized")


class Person(Value):
    """A principal of the model."""

    key: int
    roles: Roles


AGENT = Person(1, {"agent": (), "operator": ()})


class Principals(Check):
    """Each entry of a request was signed by its submitter, with the present key, and a role of it allows the command.

    All of this holds in the state before the entry. A refusal names another epoch.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._people: list[dict[str, Person]] = [{}]
        self._read = 0
        self._requests: dict[tuple[str, str], CommandRequest] = {}
        self._requests_read = 0

    def begin(self, state: ClusterState) -> None:
        """Record the principals before the run."""
        for entry in self.sim.log.entries[1:]:
            assert entry is not None, "an applied record is an entry"
            self._note(entry.command)

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check the author of an entry, unless its author wrote the log directly."""
        ring: KeyRing | None = self.sim.shared["keys"]
        signers = ring.signers.get((item.request_id, item.digest)) if ring is not None else None
        is_withdrawn = item.digest == NOOP_DIGEST and item.submitter.removeprefix("operator/").isdecimal()
        if signers is None or is_withdrawn:
            pass
        elif not any(_is_author(item, one) and self._may(one, before, item.command) for one in signers):
            who = f"{item.submitter} sent {item.kind}, signed by {sorted(signers)}"
            self.sim.broken("principals", f"epoch {after.epoch}: {who}")
        self._note(item.command)

    def results(self, partition: Partition) -> None:
        """Check that a refused request was not allowed at the epoch that the refusal names."""
        ring: KeyRing | None = self.sim.shared["keys"]
        for record in partition.records[self._read : partition.visible] if ring is not None else ():
            result = cached_result(record.value)
            if ring is None or result.code not in REFUSALS or result.epoch >= len(self._people):
                continue
            self._requests_read = requests_by_key(self.sim, self._requests, self._requests_read)
            key = (result.request_id, result.digest)
            request, signers = self._requests.get(key), ring.signers.get(key, set())
            command = request and decode_command(request.kind, request.version, request.payload)
            state = self.sim.log.states[result.epoch]
            for signer in signers if isinstance(command, Command) else ():
                if self._may(signer, state, command):
                    self.sim.broken("principals", f"epoch {result.epoch}: {signer} was refused: {result.detail}")
            self.sim.did["principals", result.code] += 1
        self._read = partition.visible

    def _may(self, signer: Signer, state: ClusterState, command: Any) -> bool:
        """Return True if the principal may send the command in this state, with this key."""
        name, key = signer
        known = AGENT if is_agent(name) else self._people[state.epoch].get(name)
        if known is None or known.key != key:
            return False
        parts = [part for one in getattr(command, "statements", ()) for part in one.commands] or [command]
        return all(any(_allows(role, name, state, part, known.roles) for role in known.roles) for part in parts)

    def _note(self, command: Any) -> None:
        """Add the principals after this command, which was applied."""
        people = dict(self._people[-1])
        if isinstance(command, GrantRole | RevokeRole | RotatePrincipalKey | RevokePrincipal):
            if command.principal not in people:
                self.sim.broken("principals", f"{command} was applied, but the principal is not active")
        elif isinstance(command, CreatePrincipal) and any(command.name in known for known in self._people):
            self.sim.broken("principals", f"{command} was applied, but the name was used before")
        match command:
            case CreatePrincipal(name, role, keyspaces):
                people[name] = Person(1, {role: keyspaces})
            case GrantRole(name, role, keyspaces):
                people[name] = replace(people[name], roles={**people[name].roles, role: keyspaces})
            case RevokeRole(name, role):
                left = {known: scope for known, scope in people[name].roles.items() if known != role}
                people[name] = replace(people[name], roles=left)
            case RotatePrincipalKey(name, key):
                people[name] = replace(people[name], key=key)
            case RevokePrincipal(name):
                del people[name]
            case _:
                people = self._people[-1]
        self._people.append(people)


def _is_author(entry: Entry, signer: Signer) -> bool:
    """Return True if the entry names this principal, or an instance of this agent."""
    name = signer[0]
    return entry.submitter.startswith(f"{name}-") if is_agent(name) else entry.submitter == name


def _allows(role: str, name: str, state: ClusterState, command: Any, roles: Roles) -> bool:
    """Return True if this role of a principal allows the command."""
    if "application" in command.NEEDS:
        return True  # every principal with a role may send it
    if not {role, *(("operator",) if role == "admin" else ())} & {*command.NEEDS}:
        return False
    if role == "node":
        about = getattr(command, "name", getattr(command, "writer", ""))
        node = state.nodes.get(getattr(command, "node", ""))
        return type(command).__name__ == "SettleVerdicts" or name == (node.name if node is not None else about)
    if not roles.get(role):
        return True
    of_keyspace = type(command).__name__ in ("CreateKeyspace", "AlterKeyspace", "DropKeyspace")
    keyspace = getattr(command, "name" if of_keyspace else "keyspace", "")
    return command.PAUSED_BY == SCHEMA and keyspace in roles[role]
