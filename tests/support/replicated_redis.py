"""Two Redis servers, a primary and its replica, behind one address that follows the primary."""

from __future__ import annotations

import selectors
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

from support.rabbitmq_server import free_ports
from support.redis_server import RedisServer
from support.waiting import wait_for


class Forwarder:
    """Forwards the connections to one socket to the server that it is told."""

    def __init__(self, path: Path, target: Path) -> None:
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(256)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(self, target: Path, *, close: bool) -> None:
        """Send new connections elsewhere; close those that are there, as a proxy does, or keep
        them, as a name does that points to another host."""
        with self._lock:
            self._target = target
            if close:
                self._close_all()

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        with self._lock:
            self._close_all()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select(timeout=0.05):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._forward(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(str(self._target))
        except OSError:  # nobody is there
            near.close()
            far.close()
            return
        for one, other in ((near, far), (far, near)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        peer = self._peers.get(source)
        if peer is None:  # closed since the selector saw it
            return
        try:
            data = source.recv(1 << 16)
            if data:
                peer.sendall(data)
                return
        except OSError:
            pass
        self._close(source)

    def _close(self, one: socket.socket) -> None:
        other = self._peers.pop(one)
        del self._peers[other]
        for each in (one, other):
            with suppress(KeyError, ValueError):
                self._selector.unregister(each)
            each.close()

    def _close_all(self) -> None:
        while self._peers:
            self._close(next(iter(self._peers)))


class ReplicatedRedis(RedisServer):
    """A primary and a replica. Clients know one address, and failovers move it."""

    def __init__(self, folder: Path, *options: str, binary: str | None = None) -> None:
        super().__init__(folder)
        ports = free_ports(2)
        self._servers = {
            port: RedisServer(
                folder / str(port), "--port", str(port), "--bind", "127.0.0.1",
                "--repl-diskless-sync-delay", "0", *options, binary=binary,
            )
            for port in ports
        }  # fmt: skip
        self._primary, self._replica = ports
        self._forwarder: Forwarder | None = None

    @property
    def primary(self) -> RedisServer:
        return self._servers[self._primary]

    @property
    def replica(self) -> RedisServer:
        return self._servers[self._replica]

    def start(self) -> None:
        for server in self._servers.values():
            server.start()
        self._forwarder = Forwarder(self.socket, self.primary.socket)
        self.attach_replica()

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._forwarder is not None:
            self._forwarder.stop()
            self._forwarder = None
        for server in self._servers.values():
            server.kill(number)

    def attach_replica(self) -> None:
        """Make the other server a replica of the primary, and wait for its copy."""
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", str(self._primary))
            wait_for(
                lambda: client.info("replication")["master_link_status"] == "up",
                "the replica's copy",
            )

    def promote(self) -> None:
        """End the replication: what the old primary accepts from now on is lost."""
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")

    def demote(self) -> None:
        """Turn the old primary into a replica of the promoted server. It refuses writes, and its
        clients stay connected."""
        with self.primary.client() as client:
            client.replicaof("127.0.0.1", str(self._replica))

    def switch(self, *, close: bool = True) -> None:
        """Point the address to the promoted server."""
        assert self._forwarder is not None
        self._primary, self._replica = self._replica, self._primary
        self._forwarder.follow(self.primary.socket, close=close)

    def synchronise(self) -> None:
        """Wait until the replica has received what the primary has written so far."""
        with self.primary.client() as primary, self.replica.client() as replica:
            written = primary.info("replication")["master_repl_offset"]
            wait_for(
                lambda: replica.info("replication").get("slave_repl_offset", 0) >= written,
                "the replica to receive everything",
            )

    def hand_over(self) -> None:
        """Promote the replica as the command FAILOVER does, and demote the old primary.

        Nothing is written until the replica has everything.
        """
        with self.primary.client() as client:
            client.client_pause(60_000, all=False)
            self.synchronise()
            self.promote()
            self.demote()
            client.client_unpause()
