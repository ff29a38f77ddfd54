"""The jobs that verify commits of a loop's branch, and which items are due for one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from mulligan.policies.jobs.job import (
    GIT_MERGE,
    Job,
    PolicySpec,
    RunnerSpec,
    VerifierSpec,
)
from mulligan.policies.loops.checkpoints import Checkpoint, in_effect, verified_commits
from mulligan.policies.loops.loop import DONE, LoopSnapshot
from mulligan.policies.loops.spec import ItemSpec
from mulligan.policies.regressions.due import (
    ItemVerdict,
    argument_words,
    batch,
    judge_item,
    meets,
)
from mulligan.policies.regressions.record import (
    ALL_ITEMS,
    CheckReason,
    RegressionLog,
    RegressionRules,
)
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.ledger import Submission
from mulligan.tasks.ports.repositories import Repository

TASK_TYPE = "regression_check"
_NO_WEIGHT = 0.001
#: Differences between two commits that a process remembers.
_MOST_REMEMBERED = 2000


@dataclass
class ChangedPaths:
    """The files that differ between two commits, remembered: a sweep asks again and again."""

    _known: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def between(self, repository: Repository, old: str, new: str) -> frozenset[str]:
        if old == new:
            return frozenset()
        if (old, new) not in self._known:
            while len(self._known) >= _MOST_REMEMBERED:
                self._known.pop(next(iter(self._known)))
            found = repository.changes(old, new)
            self._known[old, new] = frozenset(each.path for each in found)
        return self._known[old, new]


def passed_items(snapshot: LoopSnapshot) -> list[ItemSpec]:
    """Return the items that passed by a job, and so were verified once."""
    return [
        spec
        for spec in snapshot.specs
        if snapshot.record(spec.id).state == "passed" and snapshot.record(spec.id).job_id
    ]


@dataclass(frozen=True, kw_only=True)
class DueItems:
    """The items to verify at the newest checkpoint, in the order of the specs, and why."""

    reason: CheckReason
    items: tuple[str, ...]
    #: Whether these are all that have passed.
    full: bool = False
    #: Up to which commit the checks that are due after merges are done with them.
    until: str = ""


def due_items(
    snapshot: LoopSnapshot,
    rules: RegressionRules,
    checkpoints: Sequence[Checkpoint],
    changed: Callable[[str, str], frozenset[str]],
    now: float,
) -> DueItems:
    """Return what is due: everything by schedule, else what merges concern and what was asked for.

    An item with an open regression is looked after already.
    """
    log, tip = snapshot.loop.regressions, checkpoints[0].commit
    merges = {each.item: each for each in reversed(in_effect(checkpoints))}
    passed = {each.id: each for each in passed_items(snapshot) if log.open_of(each.id) is None}
    merged = {item for item in passed if item in merges}
    begun = log.full_at or snapshot.loop.started_at or now
    if now - begun >= rules.every and log.full_commit != tip:
        due, reason = merged, "schedule"
    else:
        concerned = _Concerned(log, checkpoints, merges, changed)
        due = {each for each in merged if rules.after_merge and concerned(passed[each])}
        reason = "merge" if due else "asked"
        due |= {*passed} if ALL_ITEMS in log.asked else {*passed}.intersection(log.asked)
    return DueItems(
        reason=cast("CheckReason", reason),
        items=tuple(each for each in passed if each in due),
        full=due >= merged,
        until=log.commit if reason == "asked" else _looked_at(snapshot, checkpoints, merges),
    )


def _looked_at(
    snapshot: LoopSnapshot, checkpoints: Sequence[Checkpoint], merges: Mapping[str, Checkpoint]
) -> str:
    """Return up to which commit nothing is left out by a check of what is due at the newest one.

    Items that have not passed yet, although they are merged, are left out, and so are those with an
    open regression.
    """
    log, places = snapshot.loop.regressions, [each.commit for each in checkpoints]
    if any(log.open_of(each.id) is not None for each in passed_items(snapshot)):
        return log.commit
    left = [m for item, m in merges.items() if snapshot.record(item).state not in DONE]
    place = max((places.index(each.commit) + 1 for each in left), default=0)
    if log.commit in places:
        place = min(place, places.index(log.commit))
    return places[place] if place < len(places) else ""


class _Concerned:
    """Whether merges concern an item since it was verified last."""

    def __init__(
        self,
        log: RegressionLog,
        checkpoints: Sequence[Checkpoint],
        merges: Mapping[str, Checkpoint],
        changed: Callable[[str, str], frozenset[str]],
    ) -> None:
        self._merges, self._changed = merges, changed
        self._commits = [each.commit for each in checkpoints]
        self._places = {commit: place for place, commit in enumerate(self._commits)}
        self._verified, self._good = verified_commits(checkpoints), log.known_good
        self._seen = {each.item: each.seen for each in log.found}
        self._floor = self._places.get(log.commit, len(self._commits))

    def __call__(self, spec: ItemSpec) -> bool:
        merge, item = self._merges[spec.id], spec.id
        looked = (self._verified[merge.commit], self._good.get(item), self._seen.get(item))
        newest = min(self._places.get(each or "", len(self._commits)) for each in looked)
        if newest > self._places[merge.commit]:
            return True  # it landed beside others, and was not verified with them
        since = self._commits[min(newest, self._floor)]
        words = [word for each in spec.verifiers for word in argument_words(each)]
        files = self._changed(merge.parent or merge.commit, merge.commit)
        return meets(self._changed(since, self._commits[0]), files, spec.touches, words)


def verifiers_of(spec: ItemSpec, broken: Sequence[int] = ()) -> list[VerifierSpec]:
    """Return the verifiers of an item as a job has them. ``broken``: only these."""
    return [each.plain() for i, each in enumerate(spec.verifiers) if not broken or i in broken]


def guards_of(spec: ItemSpec) -> list[int]:
    """Return the places of an item's guards."""
    return [i for i, each in enumerate(spec.verifiers) if each.role == "guard"]


def submit_check(
    context: LoopContext, snapshot: LoopSnapshot, commit: str, verifiers: Sequence[VerifierSpec]
) -> str:
    """Submit the job that verifies a commit, once for each regression or check. Return its id."""
    loop, config = snapshot.loop, snapshot.config
    space = config.item_workspace()
    if space is None:
        raise ValueError(f"{loop.name} has no repository")
    check = VerifierSpec.model_validate({"id": GIT_MERGE, "weight": _NO_WEIGHT, "check": commit})
    job = Job(
        task_type=TASK_TYPE,
        name=f"verify {commit[:10]}",
        prompt="Verify a commit. Nobody is asked.",
        runner=RunnerSpec.model_validate({"kind": "scripted", "answers": ["-"]}),
        verifiers=(*verifiers, check),
        policy=PolicySpec(max_attempts=2),
        workspace=space.model_copy(update={"ref": commit, "edits": False}),
        labels={
            **({context.tenant_label: loop.tenant} if loop.tenant else {}),
            "loop": loop.name,
        },
    )
    number = loop.regressions.next_number
    content = f"{loop.uid}/{number}/{loop.regressions.to_text()}/{job.model_dump_json()}"
    key = f"regression/{hashlib.sha256(content.encode()).hexdigest()}"
    keyed = job.model_copy(update={"idempotency_key": key})
    owner = loop.owner or None
    submission = Submission(id=context.intake.new_id(keyed, owner), job=keyed, owner=owner)
    answer = context.ledger.accept([submission])[0]
    publication = getattr(answer, "publication", None)
    context.publish([publication] if publication is not None else [])
    return answer.id


def is_running(context: LoopContext, job_id: str) -> bool:
    view = context.ledger.job(job_id)
    return view is not None and view.finished_at is None


def read_verdicts(
    context: LoopContext,
    job_id: str,
    wanted: Mapping[str, Sequence[VerifierSpec]],
    guards: Mapping[str, Collection[int]] | None = None,
) -> Iterator[tuple[str, ItemVerdict, list[int], str]]:
    """Yield what a check that has ended says about each item: the failed places and their words.

    Of a check without a verdict, the words say why. One that was lost has none.
    """
    view = context.ledger.job(job_id)
    attempt = view.attempts[-1] if view is not None and view.attempts else None
    verdict = attempt.verdict if attempt is not None else None
    specs = view.job.verifiers if view is not None else ()
    results = verdict.results if verdict is not None else ()
    for item, verifiers in wanted.items():
        found, places = judge_item(verifiers, specs, results, (guards or {}).get(item, ()))
        said = "; ".join(results[specs.index(verifiers[i])].summary for i in places)
        if found == "unknown" and view is not None:
            said = view.detail or view.reason or "a check was skipped"
        yield item, found, places, said


def next_batch(items: Sequence[ItemSpec]) -> tuple[list[str], list[VerifierSpec]]:
    """Return the items that the next check covers, and its verifiers."""
    return batch({each.id: verifiers_of(each) for each in items})
