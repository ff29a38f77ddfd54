"""Publish: send entries to the broker and stamp them. Each entry succeeds or fails by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import Entry, Publication, QueueLedger
from mulligan.tasks.ports.message_broker import BrokerAway, LeftForOthers, MessageBroker

log = logging.getLogger(__name__)

#: Messages per round trip to the broker when many are published at once.
_BATCH = 100


def log_unreachable(error: BrokerAway) -> None:
    log.warning("The broker takes no messages (%s); the sweep sends them later.", error)


@dataclass
class _Result:
    """What became of the entries of one call."""

    sent: list[Publication] = field(default_factory=list)
    #: Entry → why it cannot be sent.
    failed: dict[Entry, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Publishes entries. It never raises for an entry or a broker: the entries are in the ledger,
    and the sweep publishes them again until they are sent or quarantined."""

    ledger: QueueLedger
    broker: MessageBroker
    #: Called after an entry was sent and before it is stamped.
    step: Callable[[str, Entry], None] = lambda _name, _entry: None
    on_unreachable: Callable[[BrokerAway], None] = log_unreachable

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish at once. Entries that failed before are sent alone, so that they fail alone."""
        if not publications:
            return
        healthy = [each for each in publications if not each.failures]
        suspect = [each for each in publications if each.failures]
        batches = [healthy[i : i + _BATCH] for i in range(0, len(healthy), _BATCH)]
        result = _Result()
        try:
            for batch in [*batches, *([each] for each in suspect)]:
                self._send_batch(batch, result)
        except BrokerAway as error:
            self.on_unreachable(error)
        self._record(result, publications)

    def _send_batch(self, batch: Sequence[Publication], result: _Result) -> None:
        """Send a batch; if it fails, send its entries one by one to find out which cannot be sent.

        Some may be sent twice, which is harmless: messages are hints.
        """
        if len(batch) > 1:
            try:
                sent = self.broker.send_batch(batch)
            except (BrokerAway, LedgerUnavailable):
                raise
            except Exception as error:  # the class of it says nothing about which message it was
                log.warning("A batch could not be sent (%s); sending one by one.", error)
            else:
                self._note_sent(sent, result)
                return
        for publication in batch:
            try:
                sent = [self.broker.send(publication)]
            except (BrokerAway, LedgerUnavailable):
                raise
            except LeftForOthers as error:
                log.info(
                    "The entry %s is left to workers of a later version: %s",
                    publication.entry,
                    error,
                )
            except Exception as error:
                result.failed[publication.entry] = _describe(error)
            else:
                self._note_sent(sent, result)

    def _note_sent(self, batch: Sequence[Publication], result: _Result) -> None:
        for publication in batch:
            result.sent.append(publication)
            self.step("published", publication.entry)

    def _record(self, result: _Result, asked: Sequence[Publication]) -> None:
        queues = {each.entry: each.queue for each in asked}
        moved = [sent for sent in result.sent if sent.queue != queues[sent.entry]]
        try:
            if result.sent:
                self.ledger.stamp([sent.entry for sent in result.sent], moved=moved)
            if result.failed:
                self._count_failures(result.failed)
        except LedgerUnavailable as error:
            log.warning(
                "Messages were sent, but not marked as sent (%s); the sweep sends them again.",
                error,
            )

    def _count_failures(self, failed: dict[Entry, str]) -> None:
        quarantined = set(self.ledger.fail(failed))
        for entry, error in failed.items():
            if entry in quarantined:
                log.error(
                    "The entry %s was quarantined: %s. See: mulligan outbox list", entry, error
                )
            else:
                log.warning("The entry %s could not be sent and is tried again: %s", entry, error)


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
