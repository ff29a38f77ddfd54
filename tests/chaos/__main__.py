"""`make chaos SECONDS=…`: random kills and freezes of a real fleet, with its report."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from support.fleet import running_fleet
from support.rabbitmq_server import free_ports, running_rabbitmq

from chaos.random_faults import LEASE, POOLS, ConsoleWatcher, RandomFaults, run_with_faults
from mulligan.workers.local.server_binary import find_server, inspect_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="seconds with faults")
    parser.add_argument("--seed", type=int, help="choose the same faults again")
    parser.add_argument("--server", help="a redis-server or valkey-server (default: the bundled)")
    parser.add_argument("--rabbitmq", action="store_true", help="use RabbitMQ as the broker")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 31)
    server = inspect_server(options.server or find_server().path)
    assert server is not None, f"{options.server} is not a server"
    broker_name = "RabbitMQ" if options.rabbitmq else "the same server"
    print(f"seed {seed}; ledger: {server.kind} {server.version}; broker: {broker_name}", flush=True)
    # Not below the repository: the kernel allows 108 bytes for the path of a socket.
    folder = Path(tempfile.mkdtemp(prefix="mulligan-chaos-"))
    trace = folder / "trace"
    with ExitStack() as stack:
        broker = stack.enter_context(running_rabbitmq()) if options.rabbitmq else None
        fleet = stack.enter_context(
            running_fleet(
                folder / "fleet",
                pools=POOLS,
                persistent=True,
                binary=server.path,
                broker_url=broker.url if broker else None,
                environment={"MULLIGAN_TRACE": str(trace)},
                lease=LEASE,
                max_claims=1000,
                events_cap=10_000_000,
            )
        )
        (port,) = free_ports(1)
        console = [sys.executable, "-m", "mulligan.console", "console", "--port", str(port)]
        fleet.stack.add("console", console)
        faults = RandomFaults(fleet, seed, broker)
        watcher = ConsoleWatcher(f"http://127.0.0.1:{port}")
        try:
            report = run_with_faults(fleet, faults, watcher, trace, seconds=options.seconds)
        except BaseException:
            faults.end()
            print(f"failed; its files are in {folder}", file=sys.stderr)
            raise
    print(report)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
