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

_DOORS = "import sys; sys.path.insert(0, sys.argv.pop(1)); from launcher.doors import main; main()"
_CHUNK = 65_536
_MAX_CONNECTIONS = 128
_CONNECT_SECONDS = 30.0
_LOCAL = ("localhost", "127.0.0.1")

Place = tuple[str, int]


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

    @property
    def descriptor(self) -> int:
        """The file that the program must inherit."""
        return self._inside.fileno()

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that opens the network and then becomes the program."""
        inside = [(self.hosts.get(host, "127.0.0.1"), port) for host, port in self._places]
        python = [sys.executable, "-I", "-S", "-c", _DOORS, str(LAUNCHER.parent)]
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
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._ours.close()
            for connection in tuple(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._ours, 16, len(self._places))
        doors = [socket.socket(fileno=each) for each in descriptors]
        if not message:
            return
        free = threading.Semaphore(_MAX_CONNECTIONS)
        with selectors.DefaultSelector() as selector:
            # The other end is closed when the program has ended.
            selector.register(self._ours, selectors.EVENT_READ)
            for door, place in zip(doors, self._places, strict=True):
                door.setblocking(False)
                selector.register(door, selectors.EVENT_READ, place)
            while True:
                ready = selector.select()
                if any(key.fileobj is self._ours for key, _ in ready):
                    break
                for key, _ in ready:
                    with contextlib.suppress(OSError):
                        self._accept(key.fileobj, key.data, free)  # type: ignore[arg-type]
        for door in doors:
            door.close()

    def _accept(self, door: socket.socket, place: Place, free: threading.Semaphore) -> None:
        inside, _ = door.accept()
        inside.setblocking(True)
        if not free.acquire(blocking=False):
            inside.close()
            return

        def pass_on() -> None:
            try:
                with inside, self._connect(place) as outside:
                    both = {inside, outside}
                    self._connections |= both
                    try:
                        _pump(inside, outside)
                    finally:
                        self._connections -= both
            except OSError as error:
                log.info("A program's connection to %s:%s failed: %s", *place, error)
            finally:
                free.release()

        threading.Thread(target=pass_on, name="sandbox connection", daemon=True).start()

    def _connect(self, place: Place) -> socket.socket:
        """Connect to the place, at an address that was checked."""
        forbidden = {each for endpoint in self._never for each in _addresses(_place(endpoint))}
        problem: OSError = OSError("the name has no address")
        for address, port in _resolve(place):
            if _normal(address, port) in forbidden:
                problem = OSError("the broker, the ledger and the console are never allowed")
            elif place[0] not in _LOCAL and (_is_here(address) or _is_inner(address)):
                problem = OSError(f"{address} is this computer or its link; name localhost instead")
            else:
                try:
                    return socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
                except OSError as error:
                    problem = error
        raise problem


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
    return ("here" if _is_here(address) else address), port


def _is_here(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_inner(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any(
        each.is_loopback or each.is_link_local or each.is_unspecified
        for each in (parsed, mapped or parsed)
    )


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
