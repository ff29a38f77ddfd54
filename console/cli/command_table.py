"""Every command of `mulligan`: its name, the line of help that lists show, and where it is.

A command's own help is the docstring of its function, which begins with the same line (a test
compares them). Importing this table imports no command.
"""

from __future__ import annotations

from mulligan.console.cli.lazy_group import CommandEntry as Command
from mulligan.console.cli.lazy_group import GroupEntry as Group

COMMANDS: tuple[Command | Group, ...] = (
    Command(
        "init",
        "Write a starter mulligan.toml and jobs.yaml.",
        "commands.init:init",
    ),
    Command("run", "Run jobs and wait for them.", "commands.run:run"),
    Command("up", "Start Redis, workers, console and Flower; Ctrl-C stops them.", "commands.up:up"),
    Command("worker", "Run the workers of one pool until SIGTERM.", "commands.worker:worker"),
    Command("probe", "Tell whether a process of this host is alive.", "commands.probe:probe"),
    Command("console", "Serve the HTTP API and the page until Ctrl-C.", "commands.console:console"),
    Command("mcp", "Let an agent drive loops, over MCP on stdin and stdout.", "commands.mcp:mcp"),
    Command("submit", "Submit jobs to the queue and print their ids.", "commands.submit:submit"),
    Group(
        "jobs",
        "Check job files; list, show, follow and cancel jobs.",
        (
            Command("lint", "Check job files without running them.", "commands.lint:lint"),
            Command("list", "List the newest jobs.", "commands.jobs:list_jobs"),
            Command("show", "Show what happened to a job.", "commands.jobs:show"),
            Command(
                "watch",
                "Follow events until Ctrl-C, or until the job has ended.",
                "commands.jobs:watch",
            ),
            Command("cancel", "Cancel a job that has not ended.", "commands.jobs:cancel"),
            Command(
                "refused",
                "List refused submissions and their problems, newest first.",
                "commands.refused:refused",
            ),
        ),
    ),
    Group(
        "loops",
        "Create, run and watch loops of items that depend on each other.",
        (
            Command(
                "lint",
                "Check a loop and its spec files without running them.",
                "loops.loop_files:lint",
            ),
            Command(
                "check",
                "Compare a spec with the code base: run its verifiers.",
                "loops.loop_drafts:check",
            ),
            Command(
                "draft",
                "Let a model write the items of a loop for a goal.",
                "loops.loop_drafts:draft",
            ),
            Command("create", "Create a loop from its files.", "loops.loop_files:create"),
            Command("list", "List the loops, newest first.", "loops.loop_reading:list_loops"),
            Command(
                "show",
                "Show a loop: progress, what runs, budget, why it waits.",
                "loops.loop_reading:show",
            ),
            Command(
                "items",
                "List the items of a loop, in the order of its specs.",
                "loops.loop_reading:items",
            ),
            Command(
                "item",
                "Show an item: task, attempts, why it waits.",
                "loops.loop_reading:item",
            ),
            Command(
                "why",
                "Say why a loop or an item does not run.",
                "loops.loop_reading:why",
            ),
            Command(
                "report",
                "Report on a loop: progress, cost, failures, what is left.",
                "loops.loop_report:report",
            ),
            Command("start", "Start a loop.", "loops.loop_control:start"),
            Command("stop", "Stop a loop and cancel what it runs.", "loops.loop_control:stop"),
            Command("pause", "Pause a loop; running attempts finish.", "loops.loop_control:pause"),
            Command("resume", "Resume a paused loop.", "loops.loop_control:resume"),
            Command(
                "set",
                "Change a loop: priority, concurrency, budget.",
                "loops.loop_control:set_loop",
            ),
            Command(
                "reset",
                "Run an item again; earlier failures no longer count.",
                "loops.loop_control:reset",
            ),
            Command(
                "skip",
                "Leave an item out; what depends on it goes on.",
                "loops.loop_control:skip",
            ),
            Command(
                "heal",
                "Heal an item that gave up, or all that block others.",
                "loops.loop_healing:heal",
            ),
            Command(
                "heals",
                "List what was done to heal a loop, newest first.",
                "loops.loop_healing:heals",
            ),
            Command(
                "analyse",
                "Say why an item failed, and what may help.",
                "loops.loop_healing:analyse",
            ),
            Command(
                "coordination",
                "Show who has which files, who waits for whom, and decisions.",
                "loops.loop_coordination:coordination",
            ),
            Command(
                "overrule",
                "Overrule a decision about items of loops.",
                "loops.loop_coordination:overrule",
            ),
            Command(
                "order",
                "Say what happens to an item that waits.",
                "loops.loop_coordination:order",
            ),
            Command(
                "emit",
                "Give off an event that items wait for, or take it back.",
                "loops.loop_coordination:emit",
            ),
            Command(
                "regressions",
                "List what passed and broke later, and by whose work.",
                "loops.loop_regressions:regressions",
            ),
            Command(
                "verify",
                "Verify an item, or every one that passed, again.",
                "loops.loop_regressions:verify",
            ),
            Command("add", "Add the items of a spec file to a loop.", "loops.loop_files:add"),
            Command(
                "transcripts",
                "Print what attempts were asked and answered.",
                "loops.loop_reading:transcripts",
            ),
            Command(
                "checkpoints",
                "List what was merged into a loop's branch, newest first.",
                "loops.loop_work:checkpoints",
            ),
            Command(
                "diff",
                "Show what an item or a checkpoint changed.",
                "loops.loop_work:diff",
            ),
            Command(
                "rollback",
                "Undo what was merged after a checkpoint, or one item.",
                "loops.loop_work:rollback",
            ),
            Command(
                "transcript",
                "Show what the agent of an attempt did.",
                "loops.loop_work:transcript",
            ),
            Command(
                "log",
                "List who changed a loop and who got slots, newest first.",
                "loops.loop_reading:log",
            ),
            Command(
                "health",
                "Say whether loops are alive, and which signal is missing.",
                "loops.loop_health:health",
            ),
            Command(
                "slots",
                "Show or set how many items of all loops run at once.",
                "loops.loop_control:slots",
            ),
            Command(
                "delete",
                "Delete an ended loop, its saved work and its transcripts.",
                "loops.loop_control:delete",
            ),
            Command(
                "export",
                "Write a loop with its state to a file, to move it.",
                "loops.loop_transfer:export_loop",
            ),
            Command(
                "import",
                "Go on with an exported loop; or write a checklist as a loop.",
                "loops.loop_files:import_loop",
            ),
            Command(
                "markdown",
                "Print the items of a loop as a Markdown checklist.",
                "loops.loop_files:markdown",
            ),
        ),
    ),
    Group(
        "queue",
        "Show queue lengths; pause and resume work.",
        (
            Command(
                "list",
                "List the queues, what is paused and what waits.",
                "commands.queue:list_queues",
            ),
            Command("pause", "Pause a queue, a task type or a provider.", "commands.queue:pause"),
            Command("resume", "Resume what was paused.", "commands.queue:resume"),
        ),
    ),
    Command(
        "providers",
        "List the providers: limits, calls, waiting work, faults.",
        "commands.providers:providers",
    ),
    Group(
        "outbox",
        "List unsendable entries; send them again or drop them.",
        (
            Command(
                "list", "List quarantined entries, newest first.", "commands.outbox:list_entries"
            ),
            Command("retry", "Send quarantined entries again.", "commands.outbox:retry"),
            Command(
                "drop",
                "Drop quarantined entries and resolve their escalations.",
                "commands.outbox:drop",
            ),
        ),
    ),
    Group(
        "escalations",
        "List, show, resolve, requeue, cancel and mute escalations.",
        (
            Command(
                "list",
                "List escalations, grouped by signature, newest first.",
                "commands.escalations:list_escalations",
            ),
            Command(
                "show", "Show a group and its newest escalations.", "commands.escalations:show"
            ),
            Command(
                "resolve",
                "Resolve escalations; their jobs stay as they are.",
                "commands.escalations:resolve",
            ),
            Command(
                "requeue",
                "Requeue escalated jobs; earlier failures no longer count.",
                "commands.escalations:requeue",
            ),
            Command("cancel", "Cancel escalated jobs.", "commands.escalations:cancel"),
            Command("mute", "Mute the alerts of a group for a while.", "commands.escalations:mute"),
        ),
    ),
    Group(
        "edits",
        "Apply edits, measure, review and roll them back.",
        (
            Command(
                "run",
                "Apply the edits of a plan and keep those that help.",
                "edits.edits_command:run",
            ),
            Command(
                "resume",
                "Continue a session that was interrupted.",
                "edits.edits_command:resume",
            ),
            Group(
                "review",
                "Review edits that wait for a decision.",
                (
                    Command(
                        "list",
                        "List the edits that wait for review, newest session first.",
                        "edits.review:list_edits",
                    ),
                    Command(
                        "show",
                        "Show an edit: its reason, diff, effect and decision.",
                        "edits.review:show",
                    ),
                    Command("approve", "Approve an edit and apply it.", "edits.review:approve"),
                    Command("reject", "Reject an edit.", "edits.review:reject"),
                ),
            ),
            Command(
                "rollback",
                "Roll back an edit, or all edits of a session, byte for byte.",
                "edits.edits_command:rollback",
            ),
            Command(
                "history", "List measured effects, newest first.", "edits.edits_command:history"
            ),
            Command("report", "Plot measured effects, oldest first.", "edits.edits_command:report"),
        ),
    ),
    Group(
        "token",
        "Create, list and revoke tokens for the HTTP API.",
        (
            Command("create", "Create a token and show its text once.", "commands.token:create"),
            Command("list", "List the tokens, without their texts.", "commands.token:list_tokens"),
            Command(
                "revoke",
                "Revoke a token; it stops working within seconds.",
                "commands.token:revoke",
            ),
        ),
    ),
    Command(
        "verify",
        "Check an answer as a worker would, without running a job.",
        "commands.verify:verify",
    ),
    Command(
        "classify",
        "Classify a failure and show its signature and repair.",
        "commands.classify:classify",
    ),
    Group(
        "report",
        "Print reports on repairs, failures and cost.",
        (
            Command(
                "immediate-loop",
                "How low scores were retried, and how soon.",
                "commands.report:immediate_loop",
            ),
            Command(
                "delayed-verification",
                "Why delayed verifications counted or did not.",
                "commands.report:delayed_verification",
            ),
            Command(
                "budget",
                "How often a budget or guardrail prevented a retry.",
                "commands.report:budget",
            ),
            Command(
                "failures",
                "The most frequent failures and their repairs.",
                "commands.report:failures",
            ),
            Command(
                "cost",
                "Tokens and money spent, by task type and model.",
                "commands.report:cost",
            ),
            Command(
                "observe",
                "What enforcing would change for observed tasks.",
                "commands.report:observe",
            ),
        ),
    ),
    Group(
        "webhooks",
        "List, test, retry and drop webhook deliveries.",
        (
            Command(
                "list",
                "List the webhooks, and deliveries that are waiting or dead.",
                "commands.webhooks:list_deliveries",
            ),
            Command(
                "test",
                "Send a test event to every webhook and show the result.",
                "commands.webhooks:send_tests",
            ),
            Command("retry", "Retry dead deliveries.", "commands.webhooks:retry"),
            Command("drop", "Drop a delivery, or all dead ones.", "commands.webhooks:drop"),
        ),
    ),
    Group(
        "config",
        "Show the configuration.",
        (
            Command(
                "show",
                "Print every setting with its value and origin.",
                "commands.config:show",
            ),
        ),
    ),
    Command("schema", "Print a JSON Schema for editors.", "commands.schema:schema"),
    Command(
        "doctor",
        "Check this host, the broker, the ledger and the workers.",
        "commands.doctor:doctor",
    ),
)
