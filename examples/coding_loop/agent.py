#!/usr/bin/env python3
"""A scripted stand-in for a coding agent, for demonstrations and tests. It needs no model.

The prompt comes on stdin, the code is in the working directory. It speaks Claude Code's public
`--output-format stream-json` and makes real edits, which it reads from the folder `solutions`.
At the first try of most items it fails in a way in which real agents fail: `MISHAPS` has the list.
What it does depends on the prompt, on the files that it finds and on the quota of its account,
never on chance.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
ITEM = re.compile(r"\((SHOP-\d{3})\)")
#: What only the prompt of a later attempt says.
CORRECTIONS = ("Do this now:", "fails", "failed", "was killed", "exit code", "conflict")
#: What only the prompt of a new run says, after an earlier one gave up.
NEW_RUN = "An earlier run of this task did not pass"
#: The exit code by which it says that its account is empty.
OUT_OF_CREDITS = 75
CONFLICT = re.compile(
    r"^<<<<<<<[^\n]*\n(.*?)(?:^\|\|\|\|\|\|\|[^\n]*\n.*?)?^=======\n(.*?)^>>>>>>>[^\n]*\n",
    re.MULTILINE | re.DOTALL,
)


class Stream:
    """Events on stdout, one JSON object a line, as Claude Code prints them."""

    def __init__(self, session: str, pause: float) -> None:
        self.session = session
        self.pause = pause
        self.turns = 0
        self.used = _usage(0, 0)
        self.started = time.monotonic()

    def emit(self, kind: str, **fields: Any) -> None:
        print(json.dumps({"type": kind, **fields, "session_id": self.session}), flush=True)

    def begin(self) -> None:
        self.emit(
            "system",
            subtype="init",
            cwd=str(Path.cwd()),
            tools=["Bash", "Edit", "Read"],
            mcp_servers=[],
            model="scripted",
            permissionMode="acceptEdits",
            apiKeySource="none",
        )

    def say(self, text: str) -> None:
        self._assistant({"type": "text", "text": text})

    def act(
        self, tool: str, arguments: dict[str, Any], result: str, *, failed: bool = False
    ) -> None:
        """Tell of an action and of what came of it."""
        call = f"toolu_{self.turns:04}"
        self._assistant({"type": "tool_use", "id": call, "name": tool, "input": arguments})
        content = {"type": "tool_result", "tool_use_id": call, "content": result}
        message = {"role": "user", "content": [{**content, "is_error": failed}]}
        self.emit("user", message=message, parent_tool_use_id=None)

    def break_off(self) -> None:
        """Print half an event, and something that was never one."""
        print('{"type": "assistant", "message": {"role": "assistant", "content": [{"ty', flush=True)
        print("(node:4711) Warning: stream closed \ufffd\ufffd", flush=True)

    def end(self, text: str, *, error: bool = False) -> None:
        elapsed = int((time.monotonic() - self.started) * 1000)
        self.emit(
            "result",
            subtype="error_during_execution" if error else "success",
            is_error=error,
            duration_ms=elapsed,
            duration_api_ms=elapsed,
            num_turns=self.turns,
            result=text,
            total_cost_usd=0.0,
            usage=self.used,
        )

    def _assistant(self, content: dict[str, Any]) -> None:
        time.sleep(self.pause)
        self.turns += 1
        usage = _usage(900 + 60 * self.turns, 40 + len(json.dumps(content)) // 4)
        self.used = {name: self.used[name] + number for name, number in usage.items()}
        message = {
            "id": f"msg_{self.turns:04}",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": [content],
            "stop_reason": None,
            "usage": usage,
        }
        self.emit("assistant", message=message, parent_tool_use_id=None)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": completion,
    }


@dataclass(frozen=True)
class Edit:
    """Text of a file, and what stands there afterwards."""

    path: str
    old: str
    new: str

    def is_done(self, text: str) -> bool:
        """Whether a text has what the edit adds, even if others added something beside it."""
        return self._added() in text

    def apply(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise LookupError(
                f"{self.path}: the text to replace occurs {text.count(self.old)} times"
            )
        return text.replace(self.old, self.new)

    def reversed(self) -> Edit:
        return Edit(self.path, self.new, self.old)

    def _added(self) -> str:
        if self.new.startswith(self.old):
            return self.new.removeprefix(self.old)
        return self.new.removesuffix(self.old) if self.new.endswith(self.old) else self.new


def read_edits(name: str) -> list[Edit]:
    """Read `@@ edit PATH`, the old text, `@@ with`, the new text, `@@ end`."""
    file = HOME / "solutions" / f"{name}.txt"
    text = file.read_text("utf-8") if file.exists() else ""
    found = re.findall(r"^@@ edit (\S+)\n(.*?)^@@ with\n(.*?)^@@ end$", text, re.M | re.S)
    return [Edit(*parts) for parts in found]


class Work:
    """The agent's work on one item in the working directory."""

    def __init__(self, item: str, stream: Stream) -> None:
        self.item = item
        self.stream = stream
        self.edits = read_edits(item)
        self.mistakes = read_edits(f"{item}.first")

    def do(self, edits: list[Edit]) -> int:
        """Make the edits that are not made yet, and return how many that were."""
        made = 0
        for edit in edits:
            file = Path(edit.path)
            text = file.read_text("utf-8")
            if edit.is_done(text):
                continue
            self.stream.act("Read", {"file_path": edit.path}, f"{len(text.splitlines())} lines")
            file.write_text(edit.apply(text), "utf-8")
            arguments = {"file_path": edit.path, "old_string": edit.old, "new_string": edit.new}
            self.stream.act("Edit", arguments, "The file has been updated.")
            made += 1
        return made

    def undo_mistakes(self) -> None:
        """Take back what an earlier attempt did wrong, if it is still there."""
        left = [edit for edit in self.mistakes if edit.is_done(Path(edit.path).read_text("utf-8"))]
        if left:
            self.stream.say("My last change was wrong. I take it back first.")
            self.do([edit.reversed() for edit in left])

    def resolve_conflicts(self) -> None:
        """Keep what others merged; our own edits of these files are made again afterwards."""
        for path in dict.fromkeys(edit.path for edit in self.edits):
            file = Path(path)
            text = file.read_text("utf-8")
            if not CONFLICT.search(text):
                continue
            sides = (CONFLICT.sub(r"\1", text), CONFLICT.sub(r"\2", text))
            file.write_text(min(sides, key=lambda side: self._count_ours(path, side)), "utf-8")
            self.stream.say(f"{path} has conflict markers: I keep the other side, then add mine.")
            self.stream.act("Bash", {"command": f"git diff {path}"}, "conflict resolved")

    def _count_ours(self, path: str, text: str) -> int:
        return sum(edit.is_done(text) for edit in self.edits if edit.path == path)

    def run(self, *argv: str) -> None:
        """Run a command and show what it printed."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        printed = (done.stdout + done.stderr).strip()[-500:]
        self.stream.act("Bash", {"command": " ".join(argv)}, printed, failed=done.returncode != 0)

    def finish(self) -> int:
        """Do the item properly."""
        self.undo_mistakes()
        self.resolve_conflicts()
        made = self.do(self.edits)
        self.stream.end(f"{self.item} is done: {made} edits." if made else "It was done already.")
        return 0


# -- what goes wrong at the first try --------------------------------------------------------------


def crash_at_once(work: Work) -> int:
    """Die before anything is done."""
    work.stream.say("Let me look at the code.")
    os.kill(os.getpid(), signal.SIGSEGV)
    return 1


def stop_halfway(work: Work) -> int:
    """Be stopped by a signal when half of the work is done, and never go on."""
    work.do(work.edits[: len(work.edits) // 2])
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1


def crash_halfway(work: Work) -> int:
    """Die when half of the work is done; the next attempt goes on from there."""
    work.do(work.edits[: len(work.edits) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


def break_stream(work: Work) -> int:
    """Print broken JSON after the first edit, and end without a result."""
    work.do(work.edits[:1])
    work.stream.break_off()
    return 0


def fix_wrongly(work: Work) -> int:
    """Make a plausible change that is wrong."""
    work.do(work.mistakes)
    work.stream.end("Fixed.")
    return 0


def insist(work: Work) -> int:
    """Make the same wrong change whatever the corrections say, until a new run begins."""
    return fix_wrongly(work)


def edit_the_test(work: Work) -> int:
    """Change a protected test until it passes, instead of the code."""
    work.stream.say("The tests expect something that is not there. I adapt the tests.")
    work.do(work.mistakes)
    work.stream.end("All tests pass now.")
    return 0


def claim_success(work: Work) -> int:
    """Say that it is done, and do nothing."""
    work.stream.say("The code looks right already.")
    work.stream.end("All tests pass. Nothing was left to do.")
    return 0


def exit_with_an_error(work: Work) -> int:
    """Do all of the work, then end as if it had gone wrong."""
    work.do(work.edits)
    work.stream.end("Error: cannot save the session: EPIPE", error=True)
    sys.stderr.write("Error: cannot save the session: EPIPE\n")
    return 1


def commit_inside(work: Work) -> int:
    """Commit in the clone, and leave another repository in it."""
    work.do(work.edits)
    me = ("-c", "user.name=agent", "-c", "user.email=agent@example.org")
    work.run("git", "init", "--quiet", "notes")
    Path("notes/todo.txt").write_text("carts may need a version 2\n", "utf-8")
    work.run("git", "-C", "notes", "add", "todo.txt")
    work.run("git", "-C", "notes", *me, "commit", "--quiet", "--message", "Keep notes")
    work.run("git", "add", "shop")
    work.run("git", *me, "commit", "--quiet", "--message", f"Work on {work.item}")
    work.stream.end(f"{work.item} is done and committed.")
    return 0


#: What happens at the first try. Items that are not listed go well, if nobody else edits the same
#: lines at the same time: SHOP-001 and SHOP-002 do that, and do not declare them. SHOP-004 has an
#: account that is empty.
MISHAPS: dict[str, Callable[[Work], int]] = {
    "SHOP-003": stop_halfway,
    "SHOP-005": insist,
    "SHOP-006": edit_the_test,
    "SHOP-007": fix_wrongly,
    "SHOP-008": crash_halfway,
    "SHOP-009": break_stream,
    "SHOP-010": exit_with_an_error,
    "SHOP-011": claim_success,
    "SHOP-012": commit_inside,
    "SHOP-013": crash_at_once,
}


def is_correction(prompt: str, mishap: Callable[[Work], int]) -> bool:
    """Whether a prompt says what was wrong before, in words that the agent takes in."""
    heard = (NEW_RUN,) if mishap is insist else CORRECTIONS
    return any(words in prompt for words in heard)


def is_empty(account: Path) -> bool:
    """Whether the quota of an account is used up. Its file says since 1970 when it is renewed."""
    return account.exists() and time.time() < float(account.read_text("utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Work on an item of examples/coding_loop.")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before each action")
    parser.add_argument("--account", help="a file of the folder accounts: whose quota is used")
    options = parser.parse_args()
    prompt = sys.stdin.read()
    found = ITEM.search(prompt)
    if found is None:
        sys.stderr.write("the prompt names no item, such as (SHOP-001)\n")
        return 2
    stream = Stream(f"session-{found[1]}", options.pause)
    stream.begin()
    if options.account and is_empty(HOME / "accounts" / options.account):
        stream.end("The quota of this account is used up.", error=True)
        return OUT_OF_CREDITS
    work = Work(found[1], stream)
    mishap = MISHAPS.get(work.item)
    if mishap is not None and not is_correction(prompt, mishap):
        return mishap(work)
    return work.finish()


if __name__ == "__main__":
    sys.exit(main())
