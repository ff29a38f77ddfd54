"""A network of listed places for a confined program, which has no other.

Inside, each place has an address of its own and a listening socket; the names are in /etc/hosts.
This process accepts connections there and passes them on to the place, if it is none that is never
allowed. So any program that speaks TCP can be used, and it needs to know nothing about it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import selectors
import socket
import sys
import threading
from collections.abc import Iterator, Sequence

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.surroundings import LAUNCHER

log = logging.getLogger(__name__)

_LISTENERS = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from launcher.listeners import main; main()"
)
_CHUNK = 65_536
#: Connections of one program, and of all programs of this process: each takes two files.
_MAX_CONNECTIONS = 128
_MAX_OF_PROCESS = 256
_CONNECT_SECONDS = 10.0
#: Seconds without accepting, if this process has no file left.
_PAUSE_SECONDS = 0.2
_LOCAL = ("localhost", "127.0.0.1")

Place = tuple[str, int]

_free_of_process = threading.BoundedSemaphore(_MAX_OF_PROCESS)


class Network:
    """The places that one program may connect to, open as long as it runs."""

    def __init__(self, confinement: Confinement) -> None:
        self._places = [_place(each) for each in confinement.network]
        self._never = confinement.never
        names = dict.fromkeys(host for host, _ in self._places if host not in _LOCAL)
        #: Names that the program knows: host → address.
        self.hosts = {host: f"127.0.0.{index}" for index, host in enumerate(names, start=2)}
        self._ours, self._inside = socket.socketpair()
        self._ours.settimeout(None)
        self._connections: set[socket.socket] = set()
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    @property
    def descriptor(self) -> int:
        """The file that the program must inherit."""
        return self._inside.fileno()

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that opens the network and then becomes the program."""
        inside = [(self.hosts.get(host, "127.0.0.1"), port) for host, port in self._places]
        python = [sys.executable, "-I", "-S", "-c", _LISTENERS, str(LAUNCHER.parent)]
        return [*python, str(self.descriptor), json.dumps(inside), "--", *argv]

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Pass connections on until the program has ended."""
        thread = threading.Thread(target=self._serve, name="sandbox network", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._inside.close()
            self._ended.set()
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._ours.close()
            with self._changing:
                for connection in self._connections:
                    with contextlib.suppress(OSError):  # also ends an attempt to connect
                        connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        _, descriptors, _, _ = socket.recv_fds(self._ours, 16, len(self._places))
        listeners = [socket.socket(fileno=each) for each in descriptors]
        try:
            if len(listeners) == len(self._places):
                self._accept_all(listeners)
            elif not self._ended.is_set():
                log.warning("A program has no network: no file is left in this process")
        finally:
            for listener in listeners:
                listener.close()

    def _accept_all(self, listeners: Sequence[socket.socket]) -> None:
        with selectors.DefaultSelector() as selector:
            # The other end is closed when the program has ended.
            selector.register(self._ours, selectors.EVENT_READ)
            for listener, place in zip(listeners, self._places, strict=True):
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, place)
            while True:
                ready = selector.select()
                if any(key.fileobj is self._ours for key, _ in ready):
                    break
                for key, _ in ready:
                    try:
                        inside, _ = key.fileobj.accept()  # type: ignore[union-attr]
                    except BlockingIOError:
                        continue
                    except OSError:  # no file is left; the connection waits
                        self._ended.wait(_PAUSE_SECONDS)
                    else:
                        self._start(inside, key.data)

    def _start(self, inside: socket.socket, place: Place) -> None:
        """Pass a connection on in a thread of its own, unless there are too many."""
        inside.setblocking(True)
        if not self._free.acquire(blocking=False):
            inside.close()
            return
        if not _free_of_process.acquire(blocking=False):
            self._free.release()
            inside.close()
            return

        def pass_on() -> None:
            try:
                with self._kept(inside):
                    self._pass_on(inside, place)
            except OSError as error:
                log.info("A program's connection to %s:%s failed: %s", *place, error)
            finally:
                _free_of_process.release()
                self._free.release()

        try:
            threading.Thread(target=pass_on, name="sandbox connection", daemon=True).start()
        except RuntimeError:  # no thread is left
            _free_of_process.release()
            self._free.release()
            inside.close()

    def _pass_on(self, inside: socket.socket, place: Place) -> None:
        problem: OSError = OSError("the name has no address")
        for address, port in self._allowed(place):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with self._kept(socket.socket(family)) as outside:
                outside.settimeout(_CONNECT_SECONDS)
                try:
                    outside.connect((address, port))
                except OSError as error:
                    problem = error
                    continue
                _pump(inside, outside)
                return
        raise problem

    @contextlib.contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[socket.socket]:
        """Close the connection at the end, or when the program has ended."""
        with connection:
            with self._changing:
                if self._ended.is_set():
                    raise OSError("the program has ended")
                self._connections.add(connection)
            try:
                yield connection
            finally:
                with self._changing:
                    self._connections.discard(connection)

    def _allowed(self, place: Place) -> list[Place]:
        """Return the addresses of a place that may be connected to. Raise OSError if none may."""
        found: list[Place] = []
        forbidden = {each for endpoint in self._never for each in _addresses(_place(endpoint))}
        problem: OSError = OSError("the name has no address")
        for address, port in _resolve(place):
            if _normal(address, port) in forbidden:
                problem = OSError("the broker, the ledger and the console are never allowed")
            elif place[0] not in _LOCAL and _is_inner(address):
                problem = OSError(f"{address} is an address of the link, which is never allowed")
            elif place[0] not in _LOCAL and _is_here(address):
                problem = OSError(f"{address} is this computer; name localhost instead")
            else:
                found.append((address, port))
        if not found:
            raise problem
        return found


def open_network(confinement: Confinement, kind: str) -> Network | None:
    """Return the network of a program, or None if it has none, or all (``unsafe_sandbox``)."""
    if not confinement.network or kind == "none":
        return None
    if kind != "bubblewrap":
        raise VerifierError(
            "a program with a network can only be confined by bubblewrap, which does not work"
            " here (`mulligan doctor` says why); remove its network, or install bubblewrap"
        )
    return Network(confinement)


def _place(endpoint: str) -> Place:
    host, _, port = endpoint.rpartition(":")
    return host.lower(), int(port)


def _resolve(place: Place) -> list[Place]:
    found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(each[4][0]), int(each[4][1])) for each in found))


def _addresses(place: Place) -> set[Place]:
    try:
        return {_normal(*each) for each in _resolve(place)}
    except OSError:
        return set()


def _normal(address: str, port: int) -> Place:
    """Return one name for all addresses of this computer."""
    return ("here" if _is_here(address) else str(_parsed(address))), port


def _is_here(address: str) -> bool:
    parsed = _parsed(address)
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(parsed), 0))
        except OSError:
            return False
    return True


def _is_inner(address: str) -> bool:
    return _parsed(address).is_link_local


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Copy in both directions until both are closed."""
    other.settimeout(None)
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while selector.get_map():
            for key, _ in selector.select():
                source: socket.socket = key.fileobj  # type: ignore[assignment]
                data = source.recv(_CHUNK)
                if data:
                    key.data.sendall(data)
                else:
                    selector.unregister(source)
                    with contextlib.suppress(OSError):
                        key.data.shutdown(socket.SHUT_WR)
