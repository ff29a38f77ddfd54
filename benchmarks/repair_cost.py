"""The requests of Instructor and mulligan for the same contract, model and mistakes.

`python -m benchmarks.repair_cost`: a test server plays the model and counts. Instructor runs in a
separate environment (`uv run --with instructor`), because it is not a dependency.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mulligan.policies.jobs.job import TERMINAL, Job
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.workers.local.local_stack import local_stack
from mulligan.workers.local.temporary_ledger import temporary_ledger
from mulligan.workers.settings.model import Settings

VERSION = "1.17.0"
WRONG, RIGHT = '{"name": "Alice", "age": "thirty-one"}', '{"name": "Alice", "age": 31}'
SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
#: The maximum number of calls of each side.
ALLOWED = 10


@dataclass
class Model:
    """A model that is wrong a number of times, then right, and records the size of each prompt."""

    wrong: int
    prompts: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: dict[str, Any]) -> str:
        with self.lock:
            self.prompts.append(sum(len(str(m["content"])) for m in request["messages"]))
            return WRONG if len(self.prompts) <= self.wrong else RIGHT


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """Serve the model as an OpenAI-compatible server on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = {"role": "assistant", "content": model.answer(body)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "fake",
                      "choices": [choice], "usage": usage}  # fmt: skip
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def ask_instructor(url: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    script = Path(__file__).with_name("instructor_side.py")
    argv = [str(uv), "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
    argv += ["--with", f"instructor=={VERSION}", "python", "-P", str(script), url, str(ALLOWED - 1)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"Instructor failed:\n{done.stderr[-2000:]}")


def ask_mulligan(url: str) -> None:
    settings = Settings(allow_inline=True, sweep_interval=0.05)
    with temporary_ledger(settings) as ledger, local_stack(settings, ledger) as stack:
        job = {
            "task_type": "extract_person",
            "prompt": "Extract the person: 'Alice is 31 years old.'",
            "runner": {"kind": "openai", "base_url": url, "model": "fake"},
            "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}],
            "policy": {"max_attempts": ALLOWED},
        }
        (accepted,) = submit_jobs(stack.intake, [Job.model_validate(job)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            view = stack.ledger.job(accepted.id)
            if view is not None and view.state in TERMINAL:
                return
            time.sleep(0.01)
        raise SystemExit("the job did not end")


def main() -> None:
    console = Console(width=100)
    table = Table(title=f"calls and prompt characters ({ALLOWED} calls allowed)")
    for column in ("same wrong answer", ""):
        table.add_column(column)
    for column in ("calls", "characters sent", "longest prompt", "solved"):
        table.add_column(column, justify="right")
    for wrong, words in ((1, "once"), (3, "three times"), (1000, "always")):
        for name, ask in ((f"Instructor {VERSION}", ask_instructor), ("mulligan", ask_mulligan)):
            model = Model(wrong)
            with console.status(f"{name}, wrong {words}"), serving(model) as url:
                ask(url)
            row = (len(model.prompts), sum(model.prompts), max(model.prompts))
            right = "yes" if len(model.prompts) > wrong else "no, stopped"
            table.add_row(words, name, *(f"{value:,}" for value in row), right)
    console.print(table)


if __name__ == "__main__":
    main()
