"""Every Redis key there is. All keys of a partition begin with its name.

With prefix ``mulligan`` and partition ``p00`` (carried in the job id):

====================================== ======= ==================================================
mulligan:{p00}:job:<id>                hash    the job: body, state, pool, counters, best attempt
mulligan:{p00}:job:<id>:<n>            hash    attempt n: plan, lease token, output, verdict
mulligan:{p00}:jobs, jobs:<state>      zset    job ids by time, all and by state
mulligan:{p00}:incarnation:<id>        string  how many jobs used one key, if one left records
mulligan:{p00}:key:<name>              string  which id the key's job has in another partition, when
mulligan:{p00}:partitions              hash    the number of partitions, first and now; only in p00
mulligan:{p00}:outbox                  zset    entries by the time to look at them
mulligan:{p00}:outbox:entries          hash    entry → queue|priority|published_at|tries
mulligan:{p00}:outbox:failures         hash    entry → failures to send it, the last error
mulligan:{p00}:outbox:quarantined      zset    entries that cannot be sent or read, by time
mulligan:{p00}:outbox:quarantine       hash    entry → why, and its escalation
mulligan:{p00}:watermarks              hash    queue|priority → the newest publication claimed, when
mulligan:{p00}:leases                  zset    entries by when their lease expires
mulligan:{p00}:memory:<scope>:<of>     hash    strict signature → count
mulligan:{p00}:remedy:<coarse>         hash    technique:tried / technique:worked → count
mulligan:{p00}:cycle:<id>              hash    one self-repair cycle
mulligan:{p00}:cycles                  zset    cycle ids by creation
mulligan:{p00}:paused                  hash    queue:NAME, task_type:NAME, provider:NAME → since
mulligan:{p00}:parked                  set     reasons that entries wait behind: `quota:NAME`, …
mulligan:{p00}:parked:<reason>         zset    entries that wait behind it, the next one first
mulligan:{p00}:parked_behind           hash    entry → the reason it waits behind
mulligan:{p00}:active:<reason>         zset    entries with a slot; only in p00, for all
mulligan:{p00}:limits                  hash    configured quotas and ceilings; only in p00
mulligan:{p00}:providers               hash    runner → the provider that it asks, capped
mulligan:{p00}:gates                   set     providers that were called; only in p00
mulligan:{p00}:provider:<name>         hash    see gate.lua; only in p00
mulligan:{p00}:minute:<name>           hash    a provider's tokens by second: rates.lua; only in p00
mulligan:{p00}:spent:<tenant>:<day>    string  a tenant's tokens on one day; only in p00
mulligan:{p00}:lane:<subject>          zset    a subject's work, the most urgent first
mulligan:{p00}:holding                 hash    lane (and producer) → the work its subject holds
mulligan:{p00}:retrying                hash    lane → the mandatory retry its subject holds
mulligan:{p00}:session:<subject>       zset    a subject's recent attempts: its session
mulligan:{p00}:stale                   zset    a lane's cycles by staleness, `j:<job>` by deadline
mulligan:{p00}:loops                   zset    loops by creation; only in p00, as all of these
mulligan:{p00}:loops:active            set     loops that may ask for slots
mulligan:{p00}:loops:live              zset    jobs of the items that have a slot
mulligan:{p00}:loops:slots             string  the slots of all loops, if a person set them
mulligan:{p00}:loops:epoch             string  how often items were admitted
mulligan:{p00}:loops:lines             hash    priority → where the line of its loops begins
mulligan:{p00}:loops:locks             hash    job → the files that its item has alone, as JSON
mulligan:{p00}:loops:denied            hash    `loop/item` → why it did not get its files
mulligan:{p00}:loops:coupled           set     loops that wait for others, or give events off
mulligan:{p00}:loops:waiters:<wait>    set     loops that wait for a tenant's item or event
mulligan:{p00}:loops:events            hash    `tenant/event` → when it was given off, as JSON
mulligan:{p00}:loops:emitters:<event>  zset    items that gave a tenant's event off, by time
mulligan:{p00}:loops:given             zset    events that people gave off, by time
mulligan:{p00}:loops:sources           zset    `tenant/event/loop` of what items give off
mulligan:{p00}:loops:signals           hash    caller → how many events it gave off, capped
mulligan:{p00}:loops:decided           string  how many decisions were made
mulligan:{p00}:loops:decisions         hash    number → a decision as JSON, capped
mulligan:{p00}:loop:<name>             hash    one loop: configuration, state, incidents
mulligan:{p00}:loop:<name>:items       hash    item → `state|since|runs|job|reason`
mulligan:{p00}:loop:<name>:ready       zset    items that wait for a slot, the next one first
mulligan:{p00}:loop:<name>:urgent      hash    item → the priority of a loop that waits for it
mulligan:{p00}:loop:<name>:spec        string  the items as JSON; no script reads it
mulligan:{p00}:loop:<name>:limits      hash    the limits that its attempts share
mulligan:{p00}:loop:<name>:spent       hash    what it used, and which warnings were given
mulligan:{p00}:loop:<name>:reserved    hash    entry → what its attempt may use
mulligan:{p00}:loop:<name>:log         list    who changed it and who got slots, capped
mulligan:{p00}:loop:<name>:heals       hash    number → a healing as JSON, capped
mulligan:{p00}:loop:<name>:emitted     hash    item → `run|events` that were given off
mulligan:{p00}:loop:<name>:split       hash    item that was split → the last of its parts
mulligan:{p00}:loop:<name>:orders      hash    item → what is to be done about it, as JSON
mulligan:{p00}:loop:<name>:files       hash    item → the files that it declares, as JSON
mulligan:{p00}:loop:<name>:seen        hash    item → further files that it was seen to change
mulligan:{p00}:loop:<name>:key:<sha>   string  a change with an idempotency key was made
mulligan:{p00}:arriving:<token>:<key>  hash    a record of a loop that is imported; TTL 1 h
mulligan:{p00}:escalation:<id>         hash    one escalation and who ended it
mulligan:{p00}:escalations             zset    escalation ids by time
mulligan:{p00}:escalations:ended       zset    ended escalations by the time of their end
mulligan:{p00}:group:<signature>       hash    escalations of one signature: counts, last alert
mulligan:{p00}:group:<signature>:open  zset    the group's open escalations
mulligan:{p00}:groups                  zset    signatures by their last escalation
mulligan:{p00}:events                  stream  every change, capped
mulligan:{p00}:folded                  string  the last event that the figures include
mulligan:{p00}:figures:m:<minute>      hash    figures of one minute
mulligan:{p00}:figures:h:<hour>        hash    figures of one hour
mulligan:{p00}:figures:e:<hour>        hash    failure → the hour's newest attempt with it
mulligan:{p00}:figures:total           hash    figures since the beginning, capped
mulligan:{p00}:swept_at                string  when the last sweep ran
mulligan:{p00}:late_sweeps             string  sweeps in a row that extended all leases
mulligan:{fleet}:blob:<address>        string  a packed workspace or diff
mulligan:{fleet}:workers               hash    node name → a worker's last beat; stale ones go
mulligan:{fleet}:periodic:<name>       string  a periodic task ran within its interval
mulligan:{p00}:alerts                  hash    the last event and group read; {fleet} too
mulligan:{p00}:alerts:due              zset    `g:<signature>`, `b:<provider>` by time to alert
mulligan:{p00}:alert:<provider>        hash    a breaker's openings since the last alert
mulligan:{fleet}:alert:edit:<name>     hash    a quarantined edit: its session and its id
mulligan:{p00}:alert:credits:<name>    hash    refusals for lack of credits since the last alert
mulligan:{p00}:delivery:<id>           hash    one alert for one webhook; {fleet} too
mulligan:{p00}:deliveries:hooks        set     webhooks with waiting deliveries; {fleet} too
mulligan:{p00}:deliveries:due:<hook>   zset    a webhook's deliveries by due time; {fleet} too
mulligan:{p00}:deliveries:taken:<by>   string  the delivery that a sender took; {fleet} too
mulligan:{p00}:deliveries:dead         zset    deliveries given up; {fleet} too
mulligan:{fleet}:muted                 hash    signature → until when its group sends no alerts
mulligan:{fleet}:bulk:<id>             hash    a bulk action
mulligan:{fleet}:bulk:<id>:todo        list    escalations that it has not ended yet
mulligan:{fleet}:bulk:<id>:problems    list    escalations that it could not end, and why
mulligan:{fleet}:bulks                 zset    running bulk actions by creation
mulligan:{fleet}:edits:score:<run>     string  a suite command's score in a session
mulligan:{fleet}:edits:session:<id>    hash    a session of edits: `state`, `lease`, `started`
mulligan:{fleet}:edits                 zset    session ids by creation
mulligan:{fleet}:edits:open            zset    sessions with a next step
mulligan:{fleet}:edits:trees           hash    host and root → the session that uses the tree
mulligan:{fleet}:edits:deltas          list    measured effects, the newest first, capped
mulligan:{fleet}:configured            zset    digests of the configuration by time of change
mulligan:{fleet}:refused               zset    refused submissions by time, capped
mulligan:{fleet}:refused:messages      zset    messages that no worker could read by time, capped
mulligan:{fleet}:unfinished:<sha256>   zset    processes that began a message and did not end it
mulligan:{fleet}:transcript:<job>:<n>   list    the last events of an attempt that runs; TTL 15 min
mulligan:{fleet}:tokens                hash    id → an API token: its hash, role, tenant, expiry
mulligan:{fleet}:session:<sha256>      string  a browser session: the id of its token
====================================== ======= ==================================================

An entry is ``a:<job>/<n>`` (an attempt), ``v:<job>/<n>/<i>`` (a verification),
``c:<job>:<n>:<loop>`` (a cycle's delayed verification), ``d:<job>/1`` (an outcome to send) or
``l:p00-<loop>/1`` (a loop to be planned).
"""

from __future__ import annotations

import re
from hashlib import sha256

# Each function takes the prefix of a partition, or of `FLEET`, that `partition_prefix` returns.

#: In the place of a partition: data of the whole fleet.
FLEET = "fleet"


def partition_prefix(prefix: str, partition: str) -> str:
    """Return the prefix of a partition's keys; scripts get it as KEYS[1]."""
    return f"{prefix}:{{{partition}}}:"


def fleet_prefix(prefix: str) -> str:
    return partition_prefix(prefix, FLEET)


#: A row of the table above whose key has a fixed name: its place, its names, its type.
_ROW = re.compile(r"^mulligan:\{(p00|fleet)\}:([\w:]+(?:, [\w:]+)*) +(\w+)  ", re.MULTILINE)


def shared_types(prefix: str, partitions: int) -> dict[str, str]:
    """Return the type of every key that exists once in a partition or in the fleet."""
    found: dict[str, str] = {}
    for place, names, kind in _ROW.findall(__doc__ or ""):
        where = partition_prefixes(prefix, partitions) if place == "p00" else [fleet_prefix(prefix)]
        found |= {f"{each}{name}": kind for each in where for name in names.split(", ")}
    return found


def partition_name(number: int) -> str:
    return f"p{number:02d}"


def partition_prefixes(prefix: str, partitions: int) -> list[str]:
    """Return the prefix of each partition, in order."""
    return [partition_prefix(prefix, partition_name(number)) for number in range(partitions)]


def partition_of(name: str) -> str:
    """Return the partition that the id of a job, cycle, escalation or delivery begins with."""
    return name.partition("-")[0]


def prefix_of(prefix: str, name: str) -> str:
    """Return the prefix of the partition that holds the job, cycle, escalation or delivery."""
    return partition_prefix(prefix, partition_of(name))


# -- jobs ------------------------------------------------------------------------------------------


def job(prefix: str, job_id: str) -> str:
    return f"{prefix}job:{job_id}"


def attempt(prefix: str, job_id: str, number: int | str) -> str:
    return f"{prefix}job:{job_id}:{number}"


def incarnation(prefix: str, job_id: str) -> str:
    return f"{prefix}incarnation:{job_id}"


def partitions(first_prefix: str) -> str:
    return f"{first_prefix}partitions"


def jobs(prefix: str, state: str | None = None) -> str:
    return f"{prefix}jobs:{state}" if state else f"{prefix}jobs"


def outbox(prefix: str) -> str:
    return f"{prefix}outbox"


def quarantined(prefix: str) -> str:
    return f"{prefix}outbox:quarantined"


def quarantined_entries(prefix: str) -> str:
    return f"{prefix}outbox:quarantine"


def leases(prefix: str) -> str:
    return f"{prefix}leases"


def watermarks(prefix: str) -> str:
    return f"{prefix}watermarks"


def memory(prefix: str, scope: str, of: str) -> str:
    return f"{prefix}memory:{scope}:{of}"


def remedy(prefix: str, coarse_signature: str) -> str:
    return f"{prefix}remedy:{coarse_signature}"


def cycle(prefix: str, cycle_id: str) -> str:
    return f"{prefix}cycle:{cycle_id}"


def cycles(prefix: str) -> str:
    return f"{prefix}cycles"


def paused(prefix: str) -> str:
    return f"{prefix}paused"


def gate(prefix: str, provider: str) -> str:
    return f"{prefix}provider:{provider}"


def spent(prefix: str, tenant: str, day: int) -> str:
    return f"{prefix}spent:{tenant}:{day}"


def session(prefix: str, lane: str) -> str:
    return f"{prefix}session:{lane}"


def swept_at(prefix: str) -> str:
    return f"{prefix}swept_at"


# -- loops (only in the first partition) -----------------------------------------------------------


def loops(prefix: str) -> str:
    return f"{prefix}loops"


def event_sources(prefix: str) -> str:
    return f"{prefix}loops:sources"


def loop_slots(prefix: str) -> str:
    return f"{prefix}loops:slots"


def loop_events(prefix: str) -> str:
    return f"{prefix}loops:events"


def loop(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}"


def loop_items(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}:items"


def loop_spec(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}:spec"


def loop_log(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}:log"


def loop_spent(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}:spent"


def loop_heals(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}:heals"


def loop_orders(prefix: str, name: str) -> str:
    return f"{prefix}loop:{name}:orders"


def coupled_loops(prefix: str) -> str:
    return f"{prefix}loops:coupled"


def loop_change(prefix: str, name: str, sha: str) -> str:
    return f"{prefix}loop:{name}:key:{sha}"


def live_transcript(prefix: str, job_id: str, attempt: int) -> str:
    return f"{prefix}transcript:{job_id}:{attempt}"


# -- escalations and alerts ------------------------------------------------------------------------


def escalation(prefix: str, escalation_id: str) -> str:
    return f"{prefix}escalation:{escalation_id}"


def escalations(prefix: str) -> str:
    return f"{prefix}escalations"


def group(prefix: str, signature: str) -> str:
    return f"{prefix}group:{signature}"


def open_of_group(prefix: str, signature: str) -> str:
    return f"{prefix}group:{signature}:open"


def groups(prefix: str) -> str:
    return f"{prefix}groups"


def alert(prefix: str, name: str) -> str:
    return f"{prefix}alert:{name}"


def due_alerts(prefix: str) -> str:
    return f"{prefix}alerts:due"


def delivery(prefix: str, delivery_id: str) -> str:
    return f"{prefix}delivery:{delivery_id}"


def waiting_hooks(prefix: str) -> str:
    return f"{prefix}deliveries:hooks"


def due_deliveries(prefix: str, hook: str) -> str:
    return f"{prefix}deliveries:due:{hook}"


def dead_deliveries(prefix: str) -> str:
    return f"{prefix}deliveries:dead"


# -- events and figures ----------------------------------------------------------------------------


def events(prefix: str) -> str:
    return f"{prefix}events"


def folded(prefix: str) -> str:
    return f"{prefix}folded"


def figures_of_minute(prefix: str, minute: int) -> str:
    return f"{prefix}figures:m:{minute}"


def figures_of_hour(prefix: str, hour: int) -> str:
    return f"{prefix}figures:h:{hour}"


def examples_of_hour(prefix: str, hour: int) -> str:
    return f"{prefix}figures:e:{hour}"


def figures_total(prefix: str) -> str:
    return f"{prefix}figures:total"


# -- the fleet -------------------------------------------------------------------------------------


def blob(fleet: str, address: str) -> str:
    return f"{fleet}blob:{address}"


def workers(fleet: str) -> str:
    return f"{fleet}workers"


def periodic_turn(fleet: str, name: str) -> str:
    return f"{fleet}periodic:{name}"


def muted(fleet: str) -> str:
    return f"{fleet}muted"


def bulk(fleet: str, bulk_id: str) -> str:
    return f"{fleet}bulk:{bulk_id}"


def bulk_problems(fleet: str, bulk_id: str) -> str:
    return f"{fleet}bulk:{bulk_id}:problems"


def bulks(fleet: str) -> str:
    return f"{fleet}bulks"


def configured(fleet: str) -> str:
    return f"{fleet}configured"


def refused_submissions(fleet: str) -> str:
    return f"{fleet}refused"


def refused_messages(fleet: str) -> str:
    return f"{fleet}refused:messages"


def unfinished(fleet: str, name: str) -> str:
    """``name``: of any length, because it is the id of a message."""
    return f"{fleet}unfinished:{sha256(name.encode(errors='replace')).hexdigest()}"


def tokens(fleet: str) -> str:
    return f"{fleet}tokens"


def browser_session(fleet: str, digest: str) -> str:
    return f"{fleet}session:{digest}"


# -- edits -----------------------------------------------------------------------------------------


def edit_score(fleet: str, run: str) -> str:
    return f"{fleet}edits:score:{run}"


def edit_session(fleet: str, session_id: str) -> str:
    return f"{fleet}edits:session:{session_id}"


def edit_sessions(fleet: str) -> str:
    return f"{fleet}edits"


def open_edit_sessions(fleet: str) -> str:
    return f"{fleet}edits:open"


def edit_trees(fleet: str) -> str:
    return f"{fleet}edits:trees"


def edit_deltas(fleet: str) -> str:
    return f"{fleet}edits:deltas"
