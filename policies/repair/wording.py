"""The frame of the corrected prompt, and a task in other words. ``recipes`` has the repairs."""

from __future__ import annotations

CONTRACT = "Your answer must be JSON that fits this JSON Schema:"
LAST_ANSWER = "This is your last answer. It is not correct yet:"
GOES_ON = "The directory has your earlier changes. Go on with them."
#: Of an agent whose work was verified although it did not end well.
BROKE_OFF = "Your last session broke off: {ended}."
#: Of one that was stuck: what it repeated, and what to do instead.
STUCK = "The last attempt {stuck}."
#: For another strategy in a repository, where the work of earlier attempts is not shown.
OTHER_WAY = "Earlier attempts did not pass. {fact}{tried} Do it in another way."
TRIED = " They tried this: {techniques}."
#: For the next run of an item that failed, by the pattern of its attempts.
EARLIER_RUN = "An earlier run of this task did not pass. {summary} {advice}"
AFTER_PATTERN: dict[str, str] = {
    "same": "Do not repeat what led to this. First find out what the check needs, then do that.",
    "alternates": "Mend one of these failures without causing the other one again.",
    "no_improvement": "Do it in another way. Do the smallest part first that mends one failure.",
    "different": "Make one change at a time, and check it before the next one.",
    "lost": "Use less memory and fewer processes.",
    "blocked": "Begin with the smallest part of the task.",
}
#: Asks a model to split a task that could not be done as a whole.
SPLIT = """\
A task could not be done as a whole. {summary} Split it into two smaller tasks that are done one \
after the other. The second one is checked like the whole task.

The task, with its checks, as JSON:
{task}

Answer with one JSON object:
{{"first": {{"title": "…", "prompt": "…", "verifiers": […]}},
 "second": {{"title": "…", "prompt": "…"}}}}

Each prompt must say all that is needed for its part. The verifiers of the first part are some of \
those above, or the same ones with fewer tests or conditions. At least one of them must fail \
before the work and pass afterwards.{problems}"""
SPLIT_PROBLEMS = "\n\nAn earlier draft could not be used:\n{problems}"
#: Asks a model for the items of a loop.
DRAFT = """\
Plan this work in a git repository as a list of small work items: {goal}

Each item is done by an agent that sees only its prompt and the repository with the work of the \
items before it. Answer with one JSON object:
{{"items": [{{"id": "…", "title": "…", "prompt": "…", "depends_on": ["ID of another item", …],
 "touches": ["pattern of files that it changes", …],
 "pass_criteria": ["what a person would check", …],
 "verifiers": [{{"id": "pytest.subprocess", "args": ["tests/…"], "role": "acceptance"}}, …]}}, …]}}

- Each prompt says all that its item needs. An id has only letters, digits and _.-
- `depends_on` names ids of this list. They must not form a cycle.
- Every verifier must be able to run on the repository as it is now. A verifier with the role \
acceptance must fail now and pass when the item is done; a guard passes now and must still pass.
- A verifier is pytest.subprocess with `args`, or command.subprocess with {commands}.
- Name a verifier after the criterion that it checks (`name`).

{overview}"""
#: What command.subprocess of a draft may run.
DRAFT_COMMAND = "`command`, one of {names}"
DRAFT_PROGRAM = "`argv`, whose program is one of {names}"
DRAFT_NOTHING = "nothing: use pytest.subprocess"
#: For an item that had passed and was broken by later work.
REGRESSION = """\
Regression: this task was done before. {checks} passed at {good}, and fails since {culprit}: \
{summary}
Make it pass again without undoing what {bad} is for. The difference of {bad}:
{difference}"""
#: For an item whose work was undone because it broke another one.
UNDONE_REGRESSION = """\
Regression: your earlier work on this task, {culprit}, broke {item} and was undone. {checks} of \
{item} passed at {good}, and failed with your work: {summary}
Do the task again without breaking that. The difference that broke it:
{difference}"""
#: Of files whose kept changes conflict with the branch.
BOTH_SIDES = (
    "These files have conflicts with what was merged meanwhile: {paths}. Keep what both sides are"
    " for, and remove the lines with <<<<<<<, ======= and >>>>>>>."
)
CONFLICTS = "These files have conflicts with what was merged meanwhile:"
CONFLICTS_IN_DIRECTORY = (
    "These files have conflicts with what was merged meanwhile. The directory has both sides:"
)
MORE = "and {count} more"
FAILED_TESTS = "The first failures of the tests:"
OUTPUT = "The rest of the output of the check:"
KEEP = "Already correct. Keep it:"
KEEP_FIELDS = "fields: {names}"
KEEP_TESTS = "{passed} of {collected} tests pass"
WORKED_BEFORE = "What fixed this error before:"
DO_NOW = "Do this now:"
LEFT_OUT = "[… {count} characters left out …]"
#: Advice about answers, as it is for work in a directory.
IN_DIRECTORY: dict[str, str] = {
    "Answer with the whole file: valid code and no other words.": "Correct the code.",
    "Answer with the whole file. Define every name": "Define every name",
    "Answer with the whole file and do not change the tests.": "Do not change the tests.",
    "Correct the answer so that it passes.": "Correct the code so that it passes.",
    "Correct the answer.": "Correct the code.",
    "Answer with edits that change the files that the task needs.": (
        "Do the task by changing files in the directory. What you say does not count."
    ),
    "Change the file as it is now. Keep what both sides are for.": (
        "Keep what both sides are for, and remove the lines with <<<<<<<, ======= and >>>>>>>."
    ),
    "Write only what the task asks for: no exit calls, no exit handlers, no changes to the tests or"
    " their settings.": (
        "Put the tests and their settings back as they were. Write only what the task asks for: no"
        " exit calls, no exit handlers."
    ),
}
#: Reminders that make a free repair unnecessary in the next answer.
COERCIONS: dict[str, str] = {
    "fence": "Do not put ``` around the JSON.",
    "prose": "Write nothing before or after the JSON.",
    "json_repair": "Write strictly valid JSON: double quotes, no trailing commas, no comments.",
}
#: The same for an answer that becomes a file.
FILE_COERCIONS: dict[str, str] = {
    **COERCIONS,
    "fence": "Do not put ``` around the file.",
    "prose": "Write nothing before or after the content of the file.",
}

#: A task in other words: what a delayed verification asks without a model's help. It must share
#: less than 88 % of its words with the task alone, for tasks of ordinary length.
REFORMULATED = """\
Please solve the assignment quoted below on your own. Ignore any earlier attempt and begin from \
scratch. First think carefully about which requirements the assignment names. Then deliver just \
one complete final result that satisfies every single requirement, without further commentary, \
greetings, apologies or alternatives.

Assignment, quoted word for word:
\"\"\"
{task}
\"\"\"

Now give your freshly derived result, exactly as the assignment demands."""
