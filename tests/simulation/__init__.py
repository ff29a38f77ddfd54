"""The simulator: the real verbs, the real ledger and its Lua, in one process and simulated time.

What is real: `tasks/jobs`, `tasks/loops`, `RedisLedger` with its scripts (on fakeredis),
`RedisCalls` with its retries, `LeaseKeeper`, `Publisher`. What is simulated: the broker, the clock,
providers, verifiers and processes. A process is a greenlet that gives up control at every port
call: each command to Redis, each message, each answer, each verification, each sleep. Between any
two of them other processes run, time passes, and faults happen. There are no threads, so a run is
decided by its seed alone.

    make simulate                       fresh seeds until Ctrl-C; SECONDS=600 JOBS=2 to limit it
    make simulate SEED=17               one seed with its trace: time, process, call, answer, fault
    make simulate SEED=17 KEEP=j3,f0    only job 3 and fault 0 of that seed

**Random runs** (`scenario.py`): a seed decides some ten jobs, up to seven faults, what people do
(cancel, requeue, pause), the number of workers and sweeps, the broker's kind, the version of Redis.
Every second seed from 1000 on has one to three loops instead of most jobs (`loop_scenario.py`),
planners, and people who start, stop, pause, configure, reset, skip, inject, cancel and requeue.
Later ones have repositories, files that loops share, regressions and drafts: see `scenario.py`.
After 100 simulated seconds all faults end, and the run goes on until nothing is left to do. Then
`checker.py` reads Redis from outside and checks the invariants. A failing scenario is shrunk.

**Scripted traces** are ordinary tests, without chance::

    def test_a_worker_that_dies_after_settling_leaves_one_retry() -> None:
        with Simulation() as simulation:
            job = simulation.submit(40, 90)            # scores of attempts 1 and 2
            simulation.fault("crash_after", "settle")  # at the first call of settle.lua
            simulation.run(60)
            simulation.check()                         # drain, then every invariant
            assert [each.score for each in simulation.view(job).attempts] == [40, 90]

`submit` takes fields of a job and its shape: ``slow=2`` (slow verifiers), ``seconds=14`` (per
answer; a lease lasts 10), ``provider="beta"``, ``same_failure=True``. `fault` takes a kind, a call
(the name of a script or command, or ``publish``, ``answer``, ``verify``, ``loop_read``,
``loop_written``), which call counted from now on, and where it applies ``seconds`` and ``refusal``:

=============== ===========================================================================
kind            effect
=============== ===========================================================================
crash_before    the process dies before the call has an effect; `finally` blocks do nothing
crash_after     the call has its effect, its caller never learns of it
freeze_before   the process stands still for ``seconds``, its lease thread too; likewise
freeze_after    after the effect
slow            the answer takes ``seconds``; the lease is renewed meanwhile
lose_request    the connection breaks before the effect: `RedisCalls` repeats the call
lose_reply      the connection breaks after it: `RedisCalls` repeats the call
redis_away      nobody reaches Redis for ``seconds``
redis_refuses   writes fail for ``seconds`` with ``refusal`` OOM, READONLY, BUSY or LOADING
redis_restart   in less than a second, Redis restarts with what it holds now
lose_message    a message is lost; also duplicate, delay, purge (all of them), broker_away
provider_away   every provider fails for ``seconds``; provider_limit: it answers 429;
provider_unpaid it is out of credits
verifier_broken the verifier reaches no verdict
repository_away nobody reaches a repository for ``seconds``
push            before a call to a repository, people put commits on the branches of its loops
=============== ===========================================================================

With ``Simulation(planners=1)``, ``simulation.fleet.loops`` creates and changes loops, made by
`make_loop` and `make_item` (`loop_scenario.py`), or drafted (`drafts.py`). With ``repositories=1``,
a process looks after their branches and verifies again what passed.

`simulation.world` gives access to the rest: ``world.server.client`` (Redis without faults),
``world.broker``, ``world.providers.calls`` (by job and attempt), ``world.trace``.
"""
