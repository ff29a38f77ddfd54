"""The retry memory is a value: immutable, copied, compared, sent to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.memory import RetryMemory


def test_a_memory_does_not_change_with_the_mapping_it_was_made_from() -> None:
    counts = {"v2:a": 1}
    memory = RetryMemory(counts)
    counts["v2:a"] = 9
    counts["v2:b"] = 1
    assert dict(memory.counts) == {"v2:a": 1}
    with pytest.raises(TypeError):
        memory.counts["v2:a"] = 2  # type: ignore[index]


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))],  # noqa: S301 - ours
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_memory_can_be_copied(copied: Callable[[RetryMemory], RetryMemory]) -> None:
    record = classify_failure(ValueError("odd"), source="task")
    memory = RetryMemory({"v2:a": 2}).record(record)
    other = copied(memory)
    assert other == memory
    assert hash(other) == hash(memory)
    assert other.record(record).count(record.classification_signature) == 2
    assert memory.count(record.classification_signature) == 1


def test_memories_are_compared_by_their_counts() -> None:
    assert RetryMemory({"a": 1, "b": 2}) == RetryMemory({"b": 2, "a": 1})
    assert RetryMemory({"a": 1}) != RetryMemory({"a": 2})
    assert len({RetryMemory(), RetryMemory({}), RetryMemory({"a": 1})}) == 2
