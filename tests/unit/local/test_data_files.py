"""Which server can read which data: a table, so that no server starts with an empty ledger."""

from __future__ import annotations

import pytest

from mulligan.workers.local.home_server import DataFiles
from mulligan.workers.local.server_binary import ServerBinary

#: The newest snapshot format that a server writes: 9 by Redis 6.2, 10 by 7.0, 11 by 7.2 and
#: Valkey up to 8, 12 by Redis 7.4 and 8, 80 by Valkey 9.
READERS = {
    "Redis 6.2.14": {9},
    "Redis 7.0.15": {9, 10},
    "Redis 7.2.4": {9, 10, 11},
    "Redis 7.4.0": {9, 10, 11, 12},
    "Redis 8.2.1": {9, 10, 11, 12},
    "Valkey 7.2.5": {9, 10, 11},
    "Valkey 8.1.0": {9, 10, 11},
    "Valkey 9.1.2": {9, 10, 11, 80},
}


def server(name: str) -> ServerBinary:
    kind, _, version = name.partition(" ")
    return ServerBinary(path="/bin/server", kind=kind, version=version)


@pytest.mark.parametrize(("name", "formats"), READERS.items())
def test_a_server_reads_its_own_and_older_formats(name: str, formats: set[int]) -> None:
    directory = not name.startswith("Redis 6")  # Redis 6.2 has another layout, below
    for number in (9, 10, 11, 12, 80):
        data = DataFiles(directory=directory, snapshot=number)
        assert data.readable_by(server(name)) == (number in formats), (name, number)


@pytest.mark.parametrize("name", READERS)
def test_every_server_converts_the_file_of_redis_6(name: str) -> None:
    assert DataFiles(snapshot=9).readable_by(server(name))
    assert DataFiles().readable_by(server(name))


def test_redis_6_does_not_see_the_directory_of_a_newer_server() -> None:
    assert not DataFiles(directory=True).readable_by(server("Redis 6.2.14"))
    assert DataFiles(directory=True).readable_by(server("Redis 7.0.15"))
