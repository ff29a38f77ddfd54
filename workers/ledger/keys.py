"""Every Redis key there is. All keys of a partition share its hash tag.

With prefix ``mulligan`` and partition ``p00`` (carried in the job id):

====================================== ======= ==================================================
mulligan:{p00}:job:<id>                hash    the job: body, state, counters, best attempt
mulligan:{p00}:job:<id>:<n>            hash    attempt n: plan, lease token, output, verdict
mulligan:{p00}:jobs, jobs:<state>      zset    job ids by time, all and by state
mulligan:{p00}:outbox                  zset    entries by the time to look at them
mulligan:{p00}:outbox:entries          hash    entry → queue|priority|published_at|tries
mulligan:{p00}:watermarks              hash    queue|priority → newest publication already claimed
mulligan:{p00}:leases                  zset    entries by when their lease expires
mulligan:{p00}:memory:<scope>:<of>     hash    strict signature → count
mulligan:{p00}:remedy:<coarse>         hash    technique:tried / technique:worked → count
mulligan:{p00}:cycle:<id>              hash    one self-repair cycle
mulligan:{p00}:cycles                  zset    cycle ids by creation
mulligan:{p00}:paused                  hash    queue:NAME, task_type:NAME, provider:NAME → since
mulligan:{p00}:parked                  set     pauses and quotas that have entries behind them
mulligan:{p00}:parked:<pause>          zset    entries that met it, in the order of coming
mulligan:{p00}:active:<tenant>         set     a tenant's attempts that are leased
mulligan:{p00}:leased_for              hash    entry → the tenant whose slot it takes
mulligan:{p00}:spent:<tenant>:<day>    string  a tenant's tokens of one day
mulligan:{p00}:lane:<subject>          zset    what a subject is to do, the most urgent first
mulligan:{p00}:holding                 hash    lane → the entry its subject holds
mulligan:{p00}:session:<subject>       zset    what a subject did lately: its session
mulligan:{p00}:stale                   zset    a lane's cycles by staleness, `j:<job>` by deadline
mulligan:{p00}:escalation:<id>         hash    one escalation and who ended it
mulligan:{p00}:escalations             zset    escalation ids by time
mulligan:{p00}:escalations:ended       zset    those that were ended, by when
mulligan:{p00}:group:<signature>       hash    escalations alike: counts, example, last alert
mulligan:{p00}:group:<signature>:open  zset    the open ones of a group
mulligan:{p00}:groups                  zset    signatures by their last escalation
mulligan:{p00}:events                  stream  every change, capped
mulligan:{p00}:folded                  string  the last event that figures count
mulligan:{p00}:figures:m:<minute>      hash    figures of one minute
mulligan:{p00}:figures:h:<hour>        hash    figures of one hour
mulligan:{p00}:figures:e:<hour>        hash    failure → the newest attempt of the hour that had it
mulligan:{p00}:figures:total           hash    figures since the beginning, capped
mulligan:{p00}:swept_at                string  when the last sweep ran
mulligan:{fleet}:blob:<address>        string  a packed workspace or diff
mulligan:{fleet}:breakers              hash    provider → its circuit breaker
mulligan:{fleet}:workers               hash    node name → a worker's last beat; silent ones go
mulligan:{fleet}:events                stream  breakers that opened and closed, capped
mulligan:{p00}:alerts                  hash    how far events and groups were looked at; {fleet} too
mulligan:{p00}:alerts:due              zset    `g:<signature>`, `b:<provider>` by when to tell of it
mulligan:{fleet}:alert:<provider>      hash    a breaker's openings since it was told of
mulligan:{p00}:delivery:<id>           hash    one alert for one webhook; {fleet} too
mulligan:{p00}:deliveries              zset    those that wait by due time; `deliveries:dead` too
mulligan:{fleet}:bulk:<id>             hash    a bulk action; `:todo`, `:problems` are lists
mulligan:{fleet}:bulks                 zset    bulk actions that run, by when to look at them
mulligan:{fleet}:edits:score:<run>     string  what a command of a suite scored in a session
mulligan:{fleet}:edits:session:<id>    hash    a session of edits: `state` as JSON, `lease`
mulligan:{fleet}:edits                 zset    session ids by creation
mulligan:{fleet}:edits:open            zset    those that have a next step
mulligan:{fleet}:edits:trees           hash    host and root → the session that has the tree
mulligan:{fleet}:edits:deltas          list    measured effects, the newest first, capped
mulligan:{fleet}:configured            zset    digests of the configuration by when it changed
mulligan:{fleet}:tokens                hash    id → an API token: its hash, role, tenant, end
mulligan:{fleet}:session:<sha256>      string  a browser's session: the id of its token
====================================== ======= ==================================================

An entry is ``a:<job>/<n>`` (an attempt), ``v:<job>/<n>/<i>`` (a verification),
``c:<job>:<n>:<loop>`` (a cycle's delayed verification) or ``d:<job>/1`` (an outcome to tell).
"""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def partition_prefix(prefix: str, partition: str) -> str:
    return f"{prefix}:{{{partition}}}:"


def partition_prefixes(prefix: str, partitions: int) -> list[str]:
    """One for each partition, in order."""
    return [partition_prefix(prefix, f"p{number:02d}") for number in range(partitions)]


def partition_of(job_id: str) -> str:
    return job_id.partition("-")[0]


def _base32(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def own_job_id(root_id: str, *, partitions: int) -> str:
    """The job of a user's own Celery task, named after the first message of its line."""
    number = int.from_bytes(hashlib.sha256(root_id.encode()).digest()[:14])
    name = "own" + _base32(number, 20)
    return f"p{zlib.crc32(name.encode()) % partitions:02d}-{name}"


def is_own(job_id: str) -> bool:
    return job_id.partition("-")[2].startswith("own")


def job_id(*, partitions: int, key: str | None = None, scope: str | None = None) -> str:
    """A new id, sortable by time; with an idempotency key, the id that belongs to it."""
    if key is not None:
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:14])
        name = "k" + _base32(number, 22)
    else:
        name = _base32(int(time.time() * 1000), 9) + _base32(secrets.randbits(65), 13)
    return f"{partition_of_scope(scope or name, partitions=partitions)}-{name}"


def partition_of_scope(scope: str, *, partitions: int) -> str:
    """Where the jobs of a scope are: the partition that job_id puts them in."""
    return f"p{zlib.crc32(scope.encode()) % partitions:02d}"


def memory_key(scope: str, job: str) -> str:
    return f"memory:{scope}:{job}"
