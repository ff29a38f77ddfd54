"""What the ledger stores beside jobs: one store for each kind, created at its first use."""

from __future__ import annotations

from functools import cached_property

from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored.cycle_rows import CycleRows
from mulligan.workers.ledger.stores.beats import RedisBeats
from mulligan.workers.ledger.stores.breakers import RedisBreakers
from mulligan.workers.ledger.stores.bulk_actions import RedisBulkActions
from mulligan.workers.ledger.stores.config_changes import ConfigChanges
from mulligan.workers.ledger.stores.event_streams import EventStreams
from mulligan.workers.ledger.stores.live_transcripts import LiveTranscripts
from mulligan.workers.ledger.stores.periodic_turns import PeriodicTurns
from mulligan.workers.ledger.stores.quarantine import Quarantine
from mulligan.workers.ledger.stores.refused_submissions import RefusedSubmissions
from mulligan.workers.ledger.stores.tokens import Tokens
from mulligan.workers.ledger.stores.unfinished_runs import UnfinishedRuns


class LedgerStores(Partitioned):
    """The stores, which share the ledger's connection."""

    @cached_property
    def beats(self) -> RedisBeats:
        return RedisBeats(self.calls, prefix=self.settings.key_prefix)

    @cached_property
    def breakers(self) -> RedisBreakers:
        return RedisBreakers(self.calls, self.prefixes)

    @cached_property
    def bulk_actions(self) -> RedisBulkActions:
        prefix = self.settings.key_prefix
        return RedisBulkActions(self.calls, prefix=prefix, new_token=self.new_token)

    @cached_property
    def config_changes(self) -> ConfigChanges:
        return ConfigChanges(self.calls, self.settings.key_prefix)

    @cached_property
    def cycle_rows(self) -> CycleRows:
        return CycleRows(self.calls, self.prefixes)

    @cached_property
    def event_streams(self) -> EventStreams:
        return EventStreams(self.calls, self.prefixes)

    @cached_property
    def live_transcripts(self) -> LiveTranscripts:
        return LiveTranscripts(self.calls, prefix=self.settings.key_prefix)

    @cached_property
    def periodic_turns(self) -> PeriodicTurns:
        return PeriodicTurns(self.calls, self.settings.key_prefix)

    @cached_property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.calls, self.prefixes)

    @cached_property
    def refused_submissions(self) -> RefusedSubmissions:
        settings = self.settings
        return RefusedSubmissions(
            self.calls, prefix=settings.key_prefix, clock=self, kept=settings.retention
        )

    @cached_property
    def unfinished_runs(self) -> UnfinishedRuns:
        return UnfinishedRuns(self.calls, prefix=self.settings.key_prefix, clock=self)

    @cached_property
    def tokens(self) -> Tokens:
        return Tokens(self.calls, prefix=self.settings.key_prefix)
