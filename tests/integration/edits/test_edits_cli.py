"""`mulligan edits` for people and programs, on a tree and an embedded stack."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.waiting import wait_for

SCORE = """
import json, pathlib, time
text = pathlib.Path("a.txt").read_text().strip()
if text == "slow":
    time.sleep(60)
main = {"start": 0.5, "good": 0.7, "bad": 0.1}[text]
print(json.dumps({"scores": {"main": main}}))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Shell]:
    """A directory whose Redis keeps running, so that commands do not start one."""
    from mulligan.workers.local.embedded_redis import EmbeddedRedis

    with new_shell() as shell:
        redis = EmbeddedRedis(shell.folder / ".mulligan")
        redis.start()
        try:
            yield shell
        finally:
            redis.stop()


@pytest.fixture
def shell(server: Shell) -> Shell:
    """A tree with ``a.txt: start`` and a suite that scores it. Earlier tests' sessions stay."""
    root = server.folder / "root"
    root.mkdir(exist_ok=True)
    (root / "a.txt").write_text("start\n")
    (root / "score.py").write_text(SCORE)
    suite = {"deterministic": True, "tasks": [{"id": "t", "command": [sys.executable, "score.py"]}]}
    server.write("suite.json", suite)
    return server


def edit(name: str, text: str, **changes: Any) -> dict[str, Any]:
    payload = {"content": f"{text}\n"}
    return {"id": name, "op": "write_file", "target": "a.txt", "payload": payload, **changes}


def plan(shell: Shell, session: str, *edits: dict[str, Any], **changes: Any) -> str:
    document = {"session": session, "benchmark": {"suite": "suite.json"}, "edits": list(edits)}
    return shell.write(f"{session}.json", {**document, **changes})


def text(shell: Shell) -> str:
    return (shell.folder / "root" / "a.txt").read_text().strip()


def run(shell: Shell, name: str, *options: str, code: int = 0) -> Any:
    argv = ("edits", "run", name, "--root", "root", *options)
    return shell.invoke(*argv, code=code)


# -- a whole session -------------------------------------------------------------------------------


def test_kept_rejected_reviewed_and_rolled_back(shell: Shell) -> None:
    edits = [
        edit("k1", "good", expected_improvement="main"),
        edit("k2", "bad"),
        {**edit("k3", "x"), "op": "delete_file", "payload": {}},
    ]
    name = plan(shell, "story", *edits)
    document = json.loads(run(shell, name, "--json", code=1).stdout)
    assert document.keys() == {"session", "outcomes"}
    assert document["session"] == "story"
    fields = ["edit_id", "status", "reason", "benchmark_delta", "cluster_deltas", "error"]
    assert [list(outcome) for outcome in document["outcomes"]] == [
        [*fields, "notes", "applied_at"]
    ] * 3
    assert [(o["edit_id"], o["status"], o["reason"]) for o in document["outcomes"]] == [
        ("k1", "applied", "kept"),
        ("k2", "rejected_by_gate", "regression"),
        ("k3", "pending_review", "review_tier"),
    ]
    assert document["outcomes"][0]["benchmark_delta"] == 0.2
    assert document["outcomes"][1]["cluster_deltas"] == {"main": -0.6}
    assert text(shell) == "good"

    assert "k3  delete_file a.txt: pending_review" in shell.invoke("edits", "review", "list").output
    shown = shell.invoke("edits", "review", "show", "k3").output
    assert "-good" in shown
    assert "mulligan edits review approve story/k3" in shown
    # Without a.txt nothing scores: the gate rejects even an approved edit.
    approved = shell.invoke("edits", "review", "approve", "k3", "--by", "ada", code=1)
    assert "rejected_by_gate (regression)" in approved.output
    assert text(shell) == "good"

    history = shell.invoke_json("edits", "history", "--session", "story")
    assert [delta["edit_id"] for delta in history["deltas"]] == ["k3", "k2", "k1"]
    assert "story/k1" in shell.invoke("edits", "report", "--session", "story").output
    shell.invoke("edits", "report", "--html", "report.html", "--cluster", "main")
    page = (shell.folder / "report.html").read_text()
    assert page.count("<rect") >= 3
    assert "story/k2" in page

    assert "rolled back, 1 file" in shell.invoke("edits", "rollback", "story").output
    assert text(shell) == "start"
    again = shell.invoke("edits", "rollback", "story/k1").output
    assert "nothing to roll back" in again


def test_the_output_has_one_line_per_edit(shell: Shell) -> None:
    name = plan(shell, "lines", edit("l1", "good"), edit("l2", "good"))
    output = run(shell, name).output
    assert "l1  write_file a.txt: applied (kept)  overall +0.200, main +0.200" in output
    assert "l2  write_file a.txt: skipped (no_op)" in output
    assert "session lines: 1 applied, 1 skipped" in output
    assert "`mulligan edits rollback lines`" in output
    again = run(shell, name)
    assert "session lines is already done" in again.output


def test_without_a_suite_an_edit_needs_the_plan_s_or_a_person_s_permission(
    shell: Shell,
) -> None:
    name = plan(shell, "bare", edit("b1", "good"), benchmark={})
    assert "b1  write_file a.txt: pending_review (no_scorer)" in run(shell, name).output
    assert text(shell) == "start"
    assert "applied (ungated)" in shell.invoke("edits", "review", "approve", "b1").output
    assert text(shell) == "good"
    name = plan(shell, "allowed", edit("a1", "bad"), benchmark={"policy": "allow"})
    assert "a1  write_file a.txt: applied (ungated)" in run(shell, name).output
    assert text(shell) == "bad"


def test_rejecting_needs_a_reason_which_is_recorded(shell: Shell) -> None:
    name = plan(shell, "no", edit("n1", "good"))
    run(shell, name, "--mode", "manual")
    shell.invoke("edits", "review", "reject", "n1", code=2)
    output = shell.invoke("edits", "review", "reject", "n1", "--note", " ", code=2).output
    assert "note: say why it is rejected" in output
    argv = ("edits", "review", "reject", "n1", "--note", "too broad", "--by", "ada", "--json")
    (outcome,) = json.loads(shell.invoke(*argv).stdout)["outcomes"]
    assert (outcome["status"], outcome["error"]) == ("rejected_by_user", "too broad")
    assert text(shell) == "start"
    refused = shell.invoke("edits", "review", "approve", "n1", code=2).output
    assert "edit n1 of session no is rejected_by_user (rejected)" in refused


def test_an_edit_id_of_two_sessions_needs_its_session(shell: Shell) -> None:
    for session in ("left", "right"):
        run(shell, plan(shell, session, edit("both", "good")), "--mode", "manual")
    output = shell.invoke("edits", "review", "approve", "both", code=2).output
    assert "choose one, such as right/both" in output
    shell.invoke("edits", "review", "reject", "left/both", "--note", "no")
    assert "applied (kept)" in shell.invoke("edits", "review", "approve", "right/both").output


def test_tolerant_matches_are_noted_everywhere(shell: Shell) -> None:
    """Given a diff with wrong counts, and a search text with other white space at line ends."""
    root = shell.folder / "root"
    (root / "b.txt").write_text("one  \ntwo\nthree\n")
    diff = "--- a/a.txt\n+++ b/a.txt\n@@ -1,7 +1,9 @@\n-start\n+good\n"
    edits = [
        {"id": "f1", "op": "patch_file", "target": "a.txt", "payload": {"diff": diff}},
        {
            "id": "f2",
            "op": "search_replace",
            "target": "b.txt",
            "payload": {"search": "one\ntwo\n", "replace": "1\n2\n"},
        },
    ]
    name = plan(shell, "tolerant", edits[0])
    output = run(shell, name).output
    assert "note: a.txt: " in output
    name = plan(shell, "loose", edits[1], benchmark={"policy": "allow"})
    (outcome,) = json.loads(run(shell, name, "--json").stdout)["outcomes"]
    assert outcome["status"] == "applied"
    assert outcome["notes"][0].startswith("b.txt: ")
    assert "note: b.txt: " in shell.invoke("edits", "review", "show", "loose/f2").output
    assert "note: a.txt: " in shell.invoke("edits", "history", "--session", "tolerant").output
    (root / "b.txt").unlink()


# -- mistakes --------------------------------------------------------------------------------------

YAML_PLAN = """\
benchmark: {suite: suite.json, max_regresion: 0.1}
edits:
  - {id: e1, op: write_file, target: a.txt, payload: {content: x}}
  - id: e2
    op: search_replce
    targt: a.txt
"""
#: The file's text and the messages.
MISTAKES: list[tuple[str, list[str]]] = [
    ("", ["bad.yaml: is empty"]),
    ("[1, 2]", ["bad.yaml:1: put the list under `edits:`"]),
    ("just text", ["bad.yaml:1: a plan holds `edits:`"]),
    ("edits: []", ["bad.yaml:1: edits: must have 1 or more items"]),
    (
        YAML_PLAN,
        [
            "bad.yaml:1: benchmark.max_regresion: there is no such field; did you mean",
            "bad.yaml:4: edits[1].target: is required",
            "bad.yaml:6: edits[1].targt: there is no such field; did you mean 'target'?",
        ],
    ),
    (
        "edits:\n  - {id: a, op: x, target: x}\n  - {id: a, op: y, target: x}\n",
        ["bad.yaml:3: edits[1].id: 'a' is used twice"],
    ),
    (
        "benchmark: {suite: nowhere.yaml}\nedits: [{id: a, op: write_file, target: x}]",
        ["nowhere.yaml: there is no such file"],
    ),
]


@pytest.mark.parametrize(("content", "expected"), MISTAKES)
def test_an_invalid_plan_is_refused_with_its_lines(
    shell: Shell, content: str, expected: list[str]
) -> None:
    shell.write("bad.yaml", content)
    output = run(shell, "bad.yaml", code=2).output
    assert [line for line in expected if line not in output] == [], output
    assert text(shell) == "start"


def test_an_unknown_operation_is_skipped_with_a_hint(shell: Shell) -> None:
    wrong = {**edit("t1", "good"), "op": "wirte_file"}
    output = run(shell, plan(shell, "typo", wrong), "--mode", "auto").output
    assert "there is no operation 'wirte_file'; did you mean 'write_file'?" in output
    assert "skipped (unsupported)" in output
    assert "op wirte_file not implemented in v1" in output
    # The rule for its tier comes first: it waits, with a note for the reviewer.
    output = run(shell, plan(shell, "typo2", wrong), "--mode", "tiered").output
    assert "pending_review (review_tier)" in output
    assert "note: op wirte_file not implemented in v1" in output
    assert "skipped (unsupported)" in shell.invoke("edits", "review", "approve", "typo2/t1").output


def test_problems_of_a_plan_and_of_its_suite_are_reported_at_once(shell: Shell) -> None:
    """Given problems in the form of either file and in the names that the suite's jobs use."""
    job = {"prompt": "p", "verifiers": ["json.object"]}
    tasks = [
        {"id": "a", "cluster": "c", "comand": ["x"], "command": ["true"]},
        {"id": "b", "cluster": "c", "job": {**job, "runner": "smal"}},
        {"id": "c", "cluster": "c", "job": {**job, "runner": "smal", "verifiers": ["json.objet"]}},
    ]
    listed = "".join(f"- {json.dumps(each)}\n" for each in tasks)
    shell.write("suite3.yaml", f"tasks:\n{listed}")
    wrong = {**edit("e1", "good"), "targt": "a"}
    output = run(
        shell, plan(shell, "both", wrong, benchmark={"suite": "suite3.yaml"}), code=2
    ).output
    for line in (
        "edits[0].targt: there is no such field; did you mean 'target'?",
        "suite3.yaml:2: tasks[0].comand: there is no such field; did you mean 'command'?",
        "suite3.yaml:3: tasks[1].job.runner.profile: no profile 'smal'",
        "suite3.yaml:4: tasks[2].job.runner.profile: no profile 'smal'",
        "suite3.yaml:4: tasks[2].job.verifiers[0].id: unknown verifier 'json.objet'",
    ):
        assert line in output
    assert text(shell) == "start"


def test_a_problem_of_a_suite_has_its_file_and_line(shell: Shell) -> None:
    shell.write("suite2.yaml", "tasks:\n  - {id: t,\n     command: [no-such-program]}\n")
    name = plan(shell, "badsuite", edit("e1", "good"), benchmark={"suite": "suite2.yaml"})
    assert "suite2.yaml:3: tasks[0].command: " in run(shell, name, code=2).output
    shell.write("suite2.yaml", "tasks:\n  - {id: t, comand: [x]}\n")
    output = run(shell, name, code=2).output
    assert (
        "suite2.yaml:2: tasks[0].comand: there is no such field; did you mean 'command'" in output
    )


def test_unknown_names_are_refused_with_where_to_look(shell: Shell) -> None:
    run(shell, plan(shell, "any", edit("e1", "good")))
    for argv in (
        ("rollback", "unknown"),
        ("review", "approve", "unknown"),
        ("review", "show", "unknown"),
        ("resume", "unknown"),
        ("review", "list", "--session", "unknown"),
    ):
        output = shell.invoke("edits", *argv, code=2).output
        assert "'unknown'" in output, argv
        assert "mulligan edits review list --all" in output, argv
    missing = shell.invoke("edits", "run", "any.json", "--root", "nowhere", code=2).output
    assert "nowhere: is not a folder" in missing


def test_queueing_a_plan_needs_a_worker(shell: Shell) -> None:
    output = run(shell, plan(shell, "queued", edit("q1", "good")), "--queue", code=3).output
    assert "start it with `mulligan up`" in output


def test_a_queued_plan_is_not_run_by_the_command(shell: Shell) -> None:
    from mulligan.workers.local.embedded_redis import EmbeddedRedis

    url = EmbeddedRedis(shell.folder / ".mulligan").url
    shell.environment = {"MULLIGAN_BROKER_URL": url}
    try:
        name = plan(shell, "queued", edit("q1", "good"))
        output = run(shell, name, "--queue", code=2).output
        assert "suite.json:1: tasks[0].command: a suite may not contain commands here" in output
        shell.environment["MULLIGAN_ALLOW_INLINE"] = "true"
        assert "session queued: queued for the edit worker on" in run(shell, name, "--queue").output
        assert text(shell) == "start"
        assert "rolled back" in shell.invoke("edits", "rollback", "queued", "--json").output
    finally:
        shell.environment = {}


# -- without a ledger ------------------------------------------------------------------------------


def test_a_tree_is_rolled_back_by_its_journal() -> None:
    """Given edits that a program applied in a directory where no command ever ran."""
    from mulligan import execute_edits
    from mulligan.policies.edits.edit import Edit
    from mulligan.workers.edits.execute_edits import EditContext

    with new_shell() as shell:
        root = shell.folder / "tree"
        root.mkdir()
        (root / "a.txt").write_text("0\n")
        home = shell.folder / ".mulligan"
        for n in (1, 2, 3):
            parsed = Edit.model_validate(edit(f"e{n}", str(n)))
            ctx = EditContext(root=root, home=home, session=f"s{n}")
            assert (
                execute_edits(edits=[parsed], ctx=ctx, autonomy_mode="auto")[0].status == "applied"
            )

        def roll_back(*argv: str, code: int = 0) -> str:
            output = shell.invoke("edits", "rollback", "--root", "tree", *argv, code=code).output
            return f"{(root / 'a.txt').read_text().strip()} {output}"

        listed = roll_back()
        assert "1  " in listed
        assert "edit s3/e3: applied  a.txt" in listed
        assert roll_back("e3").startswith("2 edit e3 of session s3: rolled back, 1 file")
        assert "nothing to roll back" in roll_back("s3/e3")
        assert roll_back("--to", "1").startswith("1 everything after checkpoint 1: rolled back")
        assert roll_back("s1", "--json").startswith("0 ")
        checkpoints = json.loads(roll_back("--json")[1:])["checkpoints"]
        assert [point["kind"] for point in checkpoints] == ["edit"] * 3 + ["rollback"] * 3
        assert "no edit unknown was applied" in roll_back("unknown", code=2)
        assert "there is no checkpoint 99" in roll_back("--to", "99", code=2)
        assert "cannot be combined with a name" in roll_back("s1", "--to", "1", code=2)
        assert "cannot be used with --root" in roll_back("s1", "--note", "x", code=2)
    with new_shell() as shell:
        assert "needs --root" in shell.invoke("edits", "rollback", "--to", "1", code=2).output
        assert "name an edit or a session" in shell.invoke("edits", "rollback", code=2).output


# -- a killed process ------------------------------------------------------------------------------


def test_a_killed_run_blocks_others_until_it_is_rolled_back(
    shell: Shell,
) -> None:
    name = plan(shell, "killed", edit("s1", "good"), edit("s2", "slow"), edit("s3", "bad"))
    process = shell.start("edits", "run", name, "--root", "root")
    wait_for(lambda: text(shell) == "slow", "the second edit to be applied, and measured")
    busy = shell.run("edits", "run", plan(shell, "next", edit("n1", "bad")), "--root", "root",
                     code=1)  # fmt: skip
    assert "is held by session killed (process" in busy.stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert text(shell) == "slow", "applied but not measured yet"

    output = run(shell, "next.json", code=1).output
    assert "session killed is at work on it" in output
    assert "mulligan edits rollback killed" in output
    rolled = shell.invoke("edits", "rollback", "killed", "--json").stdout
    assert [o["status"] for o in json.loads(rolled)["outcomes"]] == [
        "rolled_back", "rolled_back", "rejected_by_user",
    ]  # fmt: skip
    assert text(shell) == "start"
    assert "rejected_by_gate (regression)" in run(shell, "next.json", code=1).output


# -- suites with jobs ------------------------------------------------------------------------------


@pytest.mark.real_models("command")
def test_a_suite_of_jobs_runs_on_the_command_s_workers(shell: Shell) -> None:
    """The prompt is in the tree, and the runner echoes it."""
    echo = [sys.executable, "-c", "import sys; print(sys.stdin.read())"]
    job = {
        "prompt_file": "a.txt",
        "runner": {"kind": "command", "argv": echo},
        "verifiers": [{"id": "text.match", "contains": "good"}],
    }
    suite = {"deterministic": True, "tasks": [{"id": "ask", "cluster": "asked", "job": job}]}
    shell.write("jobs.json", suite)
    name = plan(
        shell,
        "asking",
        edit("j1", "good", expected_improvement="asked"),
        edit("j2", "bad"),
        benchmark={"suite": "jobs.json"},
    )
    output = run(shell, name, code=1).output
    assert "j1  write_file a.txt: applied (kept)  overall +1.000, asked +1.000" in output
    assert "j2  write_file a.txt: rejected_by_gate (regression)  overall −1.000" in output
    assert text(shell) == "good"


def test_the_job_that_wrote_a_plan_gets_a_correction(shell: Shell) -> None:
    from mulligan.workers.local.embedded_redis import EmbeddedRedis

    runner = {"kind": "scripted", "answers": ['{"edits": []}']}
    job = {
        "task_type": "tune",
        "prompt": "Write a plan.",
        "runner": runner,
        "verifiers": ["json.object"],
    }
    shell.write("author.json", job)
    redis = EmbeddedRedis(shell.folder / ".mulligan")
    shell.environment = {"MULLIGAN_BROKER_URL": redis.url, "MULLIGAN_ALLOW_INLINE": "true"}
    try:
        (sent,) = shell.invoke_json("submit", "author.json")["jobs"]
        name = plan(shell, "written", edit("w1", "bad"), author=sent["id"])
        output = run(shell, name, code=1).output
        assert f"job {sent['id']} wrote the plan: job " in output
        correction = output.partition("wrote the plan: job ")[2].split()[0]
        assert (
            "rejected_by_gate (regression)"
            in shell.invoke("jobs", "show", correction, "--json").output
        )
    finally:
        shell.environment = {}
