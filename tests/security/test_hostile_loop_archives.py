"""Archives of loops that somebody made to do harm: each is refused with a clear message."""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import CodingLoop
from support.coding_loop import item as coding_item
from support.git_repositories import UserRepository, git
from support.ledger_scenario import ScenarioMaker
from support.loops import LoopScenario, document, item
from support.moved_loops import BLOB_CAP, EVE, imported

from mulligan.tasks.loops import change
from mulligan.tasks.loops.transfer import Destination, LoopArchive
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.stored.cycle_rows import CycleRows
from mulligan.workers.loops.loop_archive import load_loop, read_archive, write_archive

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def here(new_fake_scenario: ScenarioMaker) -> LoopScenario:
    loops = LoopScenario(new_fake_scenario(key_prefix="here"))
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    loops.fails("a")
    loops.move("pause")
    return loops


@pytest.fixture
def there(new_fake_scenario: ScenarioMaker) -> LoopScenario:
    return LoopScenario(new_fake_scenario(key_prefix="there"))


def records_of(loops: LoopScenario) -> dict[str, Any]:
    export = loops.scenario.ledger.export_loop("alpha")
    assert export is not None
    return copy.deepcopy(dict(export.records))


def packed(records: Any, **more: Any) -> bytes:
    into = io.BytesIO()
    write_archive(LoopArchive(records=records, **more), into)
    return into.getvalue()


def _set(place: str, value: Any) -> Change:
    """Return a change of the value at a place such as ``jobs.0.job.state``."""

    def set_it(records: dict[str, Any]) -> None:
        *path, last = (int(step) if step.isdecimal() else step for step in place.split("."))
        at: Any = records
        for step in path:
            at = at[step]
        at[last] = value

    return set_it


def _body(**fields: Any) -> Change:
    def set_it(records: dict[str, Any]) -> None:
        job = records["jobs"][0]
        job["body"] = json.dumps({**json.loads(job["body"]), **fields})

    return set_it


def _nested(place: str, **fields: Any) -> Change:
    """Return a change of fields of a text that is parsed. Python writes NaN, and half of a pair."""

    def set_it(records: dict[str, Any]) -> None:
        *path, last = (int(step) if step.isdecimal() else step for step in place.split("."))
        at: Any = records
        for step in path:
            at = at[step]
        at[last] = json.dumps({**json.loads(at[last]), **fields})

    return set_it


def _cycle(loop: int = 1, **fields: str) -> Change:
    """Return a change that adds a cycle to the first job."""

    def set_it(records: dict[str, Any]) -> None:
        job = records["jobs"][0]
        now = job["job"]["created_at"]
        about = {"taskType": "alpha", "prompt": "p", "targetNodes": [], "causeLabel": "unknown"}
        row = {"status": "escalated", "source_attempt": "1", "loop_index": str(loop)}
        row |= {"created_at": now, "metadata": json.dumps(about)}
        job["cycles"][f"{job['id']}:1:{loop}"] = {**row, **fields}

    return set_it


def _both(*changes: Change) -> Change:
    return lambda records: [each(records) for each in changes]


def _heal(**fields: Any) -> Change:
    heal = {"number": 7, "at": 5.0, "item": "a", "action": "unblock", "reason": "why"}
    return _set("heals", [json.dumps({**heal, **fields})])


def _note(**fields: Any) -> Change:
    return _set("log", [json.dumps({"at": 5.0, "note": "x", "by": "eve", **fields})])


def _regression(**fields: Any) -> Change:
    found = {"number": 1, "item": "a", "runs": 1, "at": 1.0, "good": "", "bad": "", "seen": ""}
    log = {"next_number": 2, "found": [{**found, **fields}]}
    return _set("loop.regressions", json.dumps(log))


NAN, HALF = float("nan"), "\ud800"
HOLD = '{"word": "hold", "by": "eve", "at": 1}'
#: What an earlier reading took for a number or a text, and pages and scripts could not read again.
VALUES: dict[str, tuple[Change, str]] = {
    "cycles": (_set("jobs.0.job.loop", "999999999999"), "loop: "),
    "earlier cycles": (_set("jobs.0.job.past_loops", "2"), "past_loops: is more than its attempts"),
    "best": (_set("jobs.0.job.best", "2"), "best: is more than its attempts"),
    "second cycle": (_both(_cycle(1), _cycle(2)), "an attempt has two cycles"),
    "later cycle": (_cycle(2), "a cycle is of an attempt that there is not"),
    "negative use": (_set("spent", {"loop:tokens": "-1000000"}), "spent: loop:tokens"),
    "negative money": (_set("jobs.0.job.money", "-0.5"), "money: "),
    "negative charge": (_set("jobs.0.job.charged:tokens", "-5"), "charged:tokens: "),
    "endless use": (_set("jobs.0.attempts.0.metered", "inf||"), "metered: "),
    "many fields": (_set("spent", {f"warned:day:money:{n}": "0" for n in range(10_001)}), "fields"),
    "long note": (_note(note="x" * 900_000), "log: 900,"),
    "note's time": (_note(at=1e300), "log: has a number"),
    "note's unknown time": (_note(at=NAN), "log"),
    "long heal": (_heal(reason="x" * 900_000), "heals: 900,"),
    "heal's time": (_heal(at=1e300), "heals: has a number"),
    "heal's end": (_heal(ended_at=-1e300), "heals: has a number"),
    "regression's time": (_regression(at=1e300), "regressions: has a number"),
    "regression's unknown time": (_regression(at=NAN), "regressions"),
    "score": (_nested("jobs.0.attempts.0.verdict", score=1e300), "verdict"),
    "unknown score": (_nested("jobs.0.attempts.0.verdict", score=NAN), "verdict"),
    "text as score": (_nested("jobs.0.attempts.0.verdict", score="50"), "verdict"),
    "reason": (
        _nested("jobs.0.attempts.0.verdict", decision={"action": "escalate", "reason": 5}),
        "verdict",
    ),
    "endless seconds": (_nested("jobs.0.attempts.0.output", elapsed_seconds=1e300), "output"),
    "checks": (_set("jobs.0.attempts.0.verifications", "1 " * 500_000), "verifications"),
    "cycle without a time": (_cycle(created_at=""), "created_at"),
    "cycle's reasons": (_cycle(delayed_invalid="[1,2]"), "delayed_invalid"),
    "cycle's counts": (_cycle(delayed_invalid='{"x": 1.5}'), "delayed_invalid"),
    "cycle's text": (_cycle(metadata='{"causeLabel": 5}'), "metadata"),
    "cycle's score": (_cycle(score="1e300"), "score"),
    "half a pair": (_set("loop.reason", HALF), "texts: "),
    "half a key": (_set("memory", {"a": {HALF: "1"}}), "texts: "),
    "long signature": (_set("memory", {"a": {"x" * 1000: "1"}}), "memory: has a failure"),
    "values": (_set("log", ["[" + "{}," * 1_100_000]), "log: "),
    "values of all": (_set("log", ["," * 2_600_000, "[" * 2_600_000]), "texts: have more than"),
    "order of nobody": (_set("orders", {"x": "{}"}), "orders: is not by items"),
    "order": (_set("orders", {"a": '{"said": [{"word": "run", "by": "eve", "at": 1}]}'}), "orders"),
    "orders twice": (_set("orders", {"a": f'{{"said": [{HOLD}, {HOLD}]}}'}), "an order twice"),
    "a wait of nobody": (_set("orders", {"a": '{"broken": ["x/y"]}'}), "a wait that it does not"),
    "a long name": (_set("orders", {"a": f'{{"said": [{HOLD}]}}'.replace("eve", "e" * 201)}),
                    "the name of a person is too long"),
    "order's time": (
        _set("orders", {"a": '{"said": [{"word": "hold", "by": "", "at": 1e300}]}'}),
        "orders",
    ),
    "event": (_set("events", ["other"]), "events: must be a list"),
    "window": (_set("loop.merge_window", "9000"), "merge_window"),
}  # fmt: skip


@pytest.mark.parametrize(("change_it", "said"), VALUES.values(), ids=VALUES.keys())
def test_values_that_cannot_be_read_again_are_refused(
    here: LoopScenario, there: LoopScenario, change_it: Change, said: str
) -> None:
    records = records_of(here)
    change_it(records)
    with pytest.raises(BadInput) as refused:
        there.scenario.ledger.read_arrival(records)
    assert said in str(refused.value)


def test_what_is_stored_is_what_was_read(here: LoopScenario, there: LoopScenario) -> None:
    """Given numbers as texts, missing names, and half a pair, then the ledger reads its own."""
    records = records_of(here)
    _heal(number="7", at="5", reason=f"a{HALF}", other="field")(records)
    _note(at="5", note=HALF)(records)
    _set("jobs.0.job.loop", "1")(records)
    _cycle(metadata="{}", delayed_invalid='{"too_soon": "2"}')(records)
    said = '{"word": "hold", "by": "eve", "at": "5", "later": 1}'
    urgent = '{"word": "ignore_locks", "by": "root", "at": 5}'
    _set("orders", {"b": f'{{"said": [{said}, {urgent}]}}'})(records)
    _nested("jobs.0.attempts.0.verdict", coercions=[HALF])(records)
    assert imported(there.context, packed(records)) == "written"
    (heal,), (orders,) = there.read().snapshot.heals, there.read().snapshot.orders.values()
    assert (heal.number, heal.at, heal.reason) == (7, 5.0, "a\ufffd")
    (order,) = orders.said
    assert (order.word, order.at) == ("hold", 5.0), "what concerns other loops is not ordered so"
    note = there.scenario.ledger.loop_log("alpha")[-1]
    assert (note.at, note.note) == (5.0, "\ufffd")
    job = there.scenario.view(there.item("a").job_id)
    assert job.cycles[0].metadata.keys() == {"taskType", "prompt", "targetNodes", "causeLabel"}
    assert job.attempts[0].verdict is not None
    assert job.attempts[0].verdict.coercions == ("\ufffd",)
    ledger = there.scenario.ledger
    (row,) = CycleRows(ledger.calls, ledger.prefixes).newest(since=0.0, limit=10)
    assert row.delayed_invalid == {"too_soon": 2}


RECORDS: dict[str, tuple[Change, str]] = {
    "newer schema": (_set("schema", 9999), "update mulligan here"),
    "newer format": (_set("format", 2), "update mulligan here"),
    "no schema": (_set("schema", "5"), "do not say their format"),
    "more parts": (_set("owner", "root"), "other parts than expected: 'owner'"),
    "no config": (_set("config", {"name": "x", "repo": 7}), "config: repo"),
    "name": (_set("config.name", "../../etc"), "config: name"),
    "state": (_set("loop.state", "running"), "loop: state: 'running' is not one of"),
    "tenant": (_set("loop.tenant", "acme"), "loop: 'tenant' is not a field of it"),
    "regressions": (
        _set(
            "loop.regressions",
            '{"check": {"number": 1, "commit": "c", "reason": "merge", "items": [],'
            ' "job_id": "p00-victim", "at": 1}}',
        ),
        "a check is under way",
    ),
    "uid": (_set("uid", "../x y"), "uid: is not an identity"),
    "time": (_set("exported_at", -1), "exported_at: is not a time"),
    "since": (_set("loop.since", "nan"), "loop: since: 'nan' is not a number"),
    "spec": (_set("spec", []), "spec: must be a list"),
    "items": (_set("items", {"a": "passed|0|0||"}), "items: are not those of the spec"),
    "item": (_set("items.b", "passed|0|0|p00-other|"), "its job is not that of its last run"),
    "running item": (_set("items.b", "running|0|0||"), "its job says something else"),
    "runs": (_set("items.b", "pending|0|999999999||"), "more than 1,000 runs"),
    "endless": (_set("items.b", "pending|inf|0||"), "no time"),
    "job": (_set("jobs.0.id", "p00-victim"), "it is not the job of a run of an item"),
    "job's field": (_set("jobs.0.job.owner", "root"), "'owner' is not a field of it"),
    "job's state": (_set("jobs.0.job.state", "gone"), "'gone' is not one of"),
    "running job": (_set("jobs.0.job.state", "running"), "it runs"),
    "attempts": (_set("jobs.0.job.attempt", "100000000"), "attempts are not as many"),
    "amount": (_set("jobs.0.job.seconds", "1e999"), "is not a number"),
    "verdict": (_set("jobs.0.attempts.0.verdict", "[]"), "verdict: is not an object"),
    "output": (_set("jobs.0.attempts.0.output", "{}"), "output"),
    "token": (_set("jobs.0.attempts.0.token", "x"), "'token' is not a field of it"),
    "cycle": (_set("jobs.0.cycles", {"p00-x:1:1": {}}), "jobs"),
    "escalation": (_set("jobs.0.escalations.0.attempt", 7), "not of this job"),
    "spent": (_set("spent", {"loop:tokens": "-x"}), "spent: loop:tokens"),
    "log": (_set("log", ["{}"]), "log"),
    "long log": (_set("log", ["x"] * 501), "log: must be a list of at most 500"),
    "heals": (_set("heals", ['{"number": "x"}']), "heals"),
    "memory": (_set("memory", {"../x": {}}), "memory: is not by items"),
    "seen": (_set("seen", {"a": ["x"] * 300}), "seen: must be a list"),
    "seen items": (_set("seen", {"x": ["a"]}), "seen: is not by items"),
    "counts": (_set("memory", {"a": {"x": "-1"}}), "memory: has a count"),
    "prompt": (_body(prompt="x" * 3_000_000), "prompt"),
}  # fmt: skip


@pytest.mark.parametrize(("change_it", "said"), RECORDS.values(), ids=RECORDS.keys())
def test_hostile_records_are_refused(
    here: LoopScenario, there: LoopScenario, change_it: Change, said: str
) -> None:
    records = records_of(here)
    change_it(records)
    with pytest.raises(BadInput) as refused:
        imported(there.context, packed(records))
    assert said in str(refused.value)
    assert there.scenario.ledger.calls.run("KEYS", "there:*") == []


def test_a_job_gets_no_more_rights_than_its_item(here: LoopScenario, there: LoopScenario) -> None:
    """Given a body that asks for other verifiers, labels and a queue, it has those of its item."""
    records = records_of(here)
    _body(
        verifiers=[{"id": "text.match", "pattern": ".*"}],
        labels={"tenant": "victim"},
        workspace={"path": "/etc"},
        task_type="other",
        on_done={"queue": "victim", "task": "steal"},
    )(records)
    assert imported(there.context, packed(records)) == "written"
    job = there.scenario.ledger.job(there.item("a").job_id)
    assert job is not None
    assert [each.id for each in job.job.verifiers] == ["json.object"]
    assert (job.tenant, job.job.task_type, job.job.workspace) == (None, "alpha", None)
    assert (job.job.on_done, job.job.subject) == (None, None)
    assert job.job.labels == {"loop": "alpha", "item": "a"}


# -- files -----------------------------------------------------------------------------------------


def tar_of(*members: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for about, data in members:
            info = tarfile.TarInfo(about) if isinstance(about, str) else about
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return into.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def announced(name: str, size: int) -> bytes:
    """Return an archive whose only file is said to be so large."""
    info = tarfile.TarInfo(name)
    info.size = size
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


def bomb() -> bytes:
    """Return a small archive of a file with more bytes than are allowed."""
    info = tarfile.TarInfo(f"blobs/{'0' * 64}")
    info.size = BLOB_CAP + 1
    return gzip.compress(info.tobuf() + bytes(info.size + 1024))


def long_header() -> bytes:
    info = special("././@PaxHeader", tarfile.XHDTYPE)
    info.size = 3_000_000_000
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))


def manifest(**more: Any) -> bytes:
    """Return a manifest that names records without content; ``more``: other parts."""
    files = {"loop.json": sha256(b"[]")}
    return json.dumps({"format": 1, "refs": {}, "files": files, **more}).encode()


def zeros() -> bytes:
    """Return a small archive of a pack that a loop may have, which unpacks to a thousand times."""
    info = tarfile.TarInfo("repository.pack")
    info.size = 40_000_000
    head = tarfile.TarInfo("manifest.json")
    text = manifest(files={"loop.json": "", "repository.pack": ""})
    head.size = len(text)
    start = head.tobuf() + text + bytes(-len(text) % 512)
    return gzip.compress(start + info.tobuf() + bytes(info.size + 1024))


MANIFEST, RECORDS_OF_NONE = ("manifest.json", manifest()), ("loop.json", b"[]")
MANY = dict.fromkeys(["loop.json", *map(str, range(20_000))], "")
WHOLE = tar_of(MANIFEST, RECORDS_OF_NONE)
PLAIN = gzip.decompress(WHOLE)
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "damaged"),
    "text": (b"hello", "damaged"),
    "not tar": (gzip.compress(b"hello" * 1000), "damaged"),
    "cut off": (WHOLE[:60], "damaged"),
    "no checksum": (WHOLE[:-8], "damaged"),
    "other checksum": (WHOLE[:-8] + b"12345678", "damaged"),
    "more after it": (WHOLE + b"x", "damaged"),
    "another after it": (WHOLE + gzip.compress(b"x"), "something follows its end"),
    "more in it": (gzip.compress(PLAIN[:-100] + b"x" + PLAIN[-99:]), "something follows its end"),
    "much after it": (gzip.compress(PLAIN + bytes(20_000)), "something follows its end"),
    "other content": (tar_of(MANIFEST, ("loop.json", b"{}")), "not what manifest.json says"),
    "not named": (
        tar_of(MANIFEST, (f"blobs/{'0' * 64}", b"x")), "not what manifest.json says"
    ),
    "manifest last": (tar_of(RECORDS_OF_NONE, MANIFEST), "does not begin with manifest.json"),
    "zeros": (zeros(), "too large"),
    "absolute": (tar_of(("/etc/passwd", b"x")), "belongs to no loop: '/etc/passwd'"),
    "above": (tar_of(("../manifest.json", b"x")), "belongs to no loop"),
    "blob above": (tar_of(("blobs/../../x", b"x")), "belongs to no loop"),
    "blob's name": (tar_of((f"blobs/{'g' * 64}", b"x")), "belongs to no loop"),
    "link": (tar_of((special("loop.json", tarfile.SYMTYPE, "/etc/x"), b"")), "not a plain file"),
    "hard link": (tar_of((special("loop.json", tarfile.LNKTYPE, "/x"), b"")), "not a plain file"),
    "device": (tar_of((special("loop.json", tarfile.CHRTYPE), b"")), "not a plain file"),
    "folder": (tar_of((special("blobs", tarfile.DIRTYPE), b"")), "not a plain file"),
    "sparse": (tar_of((special("loop.json", tarfile.GNUTYPE_SPARSE), b"")), "not a plain file"),
    "long header": (long_header(), "not a plain file"),
    "too large": (announced("loop.json", 9_000_000_000), "too large: loop.json"),
    "too large a manifest": (announced("manifest.json", 60_000_000), "too large"),
    "shorter": (announced("manifest.json", 400_000), "damaged"),
    "bomb": (bomb(), "too large"),
    "twice": (tar_of(MANIFEST, MANIFEST), "twice"),
    "nothing": (tar_of(), "does not begin with manifest.json"),
    "no records": (tar_of(("manifest.json", manifest(files={}))), "it has no loop.json"),
    "lost records": (tar_of(MANIFEST), "it has no loop.json"),
    "many files": (
        tar_of(("manifest.json", manifest(files=MANY))),
        "more than 20,000 files",
    ),
    "other format": (tar_of(("manifest.json", b'{"format": 2}')), "reads up to 1"),
    "no format": (tar_of(("manifest.json", b"[]")), "not one of a loop"),
    "refs": (tar_of(("manifest.json", b'{"format": 1, "refs": {"a": 1}}')), "not one of a loop"),
    "deep": (tar_of(("manifest.json", b"[" * 1_000_000)), "damaged: manifest.json"),
    "not a number": (tar_of(("manifest.json", b'{"format": NaN}')), "no number of JSON"),
    "records": (WHOLE, "not an object"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "said"), FILES.values(), ids=FILES.keys())
def test_hostile_files_are_refused(
    there: LoopScenario, data: bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as refused:
        imported(there.context, data)
    assert said in str(refused.value)
    with pytest.raises(BadInput):
        load_loop(there.context, io.BytesIO(data), Destination(), EVE, blob_cap=BLOB_CAP)
    assert there.scenario.ledger.loops() == []
    assert [*tmp_path.iterdir()] == []


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """Given files that are allowed one by one, then all of them together are bounded, too."""
    contents = {f"blobs/{sha256(bytes([n]) * 1_000)}": bytes([n]) * 1_000 for n in range(4)}
    names = {name: name.removeprefix("blobs/") for name in contents}
    head = ("manifest.json", manifest(files={"loop.json": "", **names}))
    archive = tar_of(head, *contents.items())
    with pytest.raises(BadInput, match="too large"):
        read_archive(io.BytesIO(archive), tmp_path, blob_cap=BLOB_CAP, most=5_000)
    assert 0 < sum(each.stat().st_size for each in tmp_path.iterdir()) <= 5_000


def test_nothing_is_unpacked_that_the_manifest_does_not_name(tmp_path: Path) -> None:
    for data in (zeros(), tar_of(("repository.pack", bytes(1000)))):
        folder = tmp_path / sha256(data)
        folder.mkdir()
        with pytest.raises(BadInput):
            read_archive(io.BytesIO(data), folder, blob_cap=BLOB_CAP)
        assert sum(each.stat().st_size for each in folder.iterdir()) < 25_000_000


def test_a_flipped_bit_is_refused_or_changes_nothing(here: LoopScenario, tmp_path: Path) -> None:
    records = records_of(here)
    archive = packed(records)
    refused = 0
    for place in range(0, len(archive), 11):
        data = bytearray(archive)
        data[place] ^= 1 << place % 8
        folder = tmp_path / str(place)
        folder.mkdir()
        try:
            found = read_archive(io.BytesIO(data), folder, blob_cap=BLOB_CAP)
        except BadInput:
            refused += 1
        else:
            assert (found.records, found.refs) == (records, {})
    assert refused > len(archive) / 11 - 10


def test_a_stored_file_has_the_content_that_it_is_named_after(tmp_path: Path) -> None:
    fleet = CodingLoop(tmp_path, "unused")
    source = CodingLoop(tmp_path / "source", "unused", key_prefix="source")
    runner = {"kind": "scripted", "answers": ["{}"]}
    change.create_loop(source.services.loops, document(item("a"), runner=runner), by="ada")
    export = source.ledger.export_loop("alpha")
    assert export is not None
    name, text = f"blobs/{'0' * 64}", json.dumps(export.records).encode()
    wrong = packed(export.records, blobs={f"sha256:{'0' * 64}": lambda: b"other"})
    with pytest.raises(BadInput, match="is not what manifest"):
        imported(fleet.services.loops, wrong)
    head = manifest(files={"loop.json": sha256(text), name: sha256(b"other")})
    wrong = tar_of(("manifest.json", head), ("loop.json", text), (name, b"other"))
    with pytest.raises(BadInput, match="has another content"):
        imported(fleet.services.loops, wrong)
    assert fleet.ledger.loops() == []


# -- the repository --------------------------------------------------------------------------------


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def moved(tmp_path: Path, user: UserRepository) -> tuple[CodingLoop, dict[str, Any]]:
    """A place with the repository, and the records of a loop that has not begun."""
    here = CodingLoop(tmp_path / "here", user.path, key_prefix="here")
    here.start(coding_item("A"))
    change.move(here.services.loops, "demo", "stop", EVE)
    export = here.ledger.export_loop("demo")
    assert export is not None
    there = CodingLoop(tmp_path / "there", user.path, key_prefix="there")
    return there, copy.deepcopy(dict(export.records))


def pack_of(repository: Path, commit: str) -> io.BytesIO:
    names = git(repository, "rev-list", "--objects", commit).splitlines()
    ids = "".join(f"{each.split()[0]}\n" for each in names)
    path = repository / "made"
    made = git(repository, "pack-objects", "-q", str(path), stdin=ids.encode())
    data = Path(f"{path}-{made}.pack").read_bytes()
    for each in repository.glob("made-*"):
        each.unlink()
    return io.BytesIO(data)


@pytest.mark.parametrize(
    "ref",
    ["refs/heads/main", "refs/heads/mulligan/other", "refs/mulligan/attempts/other/A/1-x",
     "refs/mulligan/fence/demo", "refs/mulligan/attempts/demo/../x/A/1-x", "HEAD", "refs/tags/v1",
     "refs/mulligan/attempts/demo/A", "refs/remotes/origin/main", "refs/heads/mulligan/demo\n"],
)  # fmt: skip
def test_only_references_of_the_loop_come(
    moved: tuple[CodingLoop, dict[str, Any]], user: UserRepository, ref: str
) -> None:
    there, records = moved
    before = user.git("for-each-ref")
    commit = user.git("rev-parse", "main")
    with pytest.raises(BadInput, match="not the loop's"):
        imported(there.services.loops, packed(records, refs={ref: commit}))
    assert user.git("for-each-ref") == before
    assert there.ledger.loops() == []


@pytest.mark.parametrize("commit", ["main", "--all", "0" * 39, "HEAD"])
def test_references_name_commits(moved: tuple[CodingLoop, dict[str, Any]], commit: str) -> None:
    there, records = moved
    with pytest.raises(BadInput, match="not a commit"):
        imported(there.services.loops, packed(records, refs={"refs/heads/mulligan/demo": commit}))


def test_a_reference_to_something_else_than_a_commit_is_refused(
    moved: tuple[CodingLoop, dict[str, Any]], user: UserRepository
) -> None:
    there, records = moved
    for oid in (user.git("rev-parse", "main^{tree}"), "1" * 40):
        with pytest.raises(BadInput, match="lacks commits"):
            imported(there.services.loops, packed(records, refs={"refs/heads/mulligan/demo": oid}))


def test_objects_that_git_would_not_make_are_refused(
    moved: tuple[CodingLoop, dict[str, Any]], user: UserRepository, tmp_path: Path
) -> None:
    """Given a tree with a file below `.git`, which a checkout would run."""
    there, records = moved
    other = UserRepository.make(tmp_path / "other")
    blob = other.git("hash-object", "-w", "--stdin", stdin=b"[core]\n\tfsmonitor = evil\n")
    entry = b"100644 config\0" + bytes.fromhex(blob)
    inner = other.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=entry)
    entry = b"40000 .git\0" + bytes.fromhex(inner)
    tree = other.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=entry)
    commit = other.git("commit-tree", tree, "-m", "evil")
    archive = packed(
        records, refs={"refs/heads/mulligan/demo": commit}, pack=pack_of(other.path, commit)
    )
    before = user.git("for-each-ref")
    with pytest.raises(BadInput, match="its objects are refused"):
        imported(there.services.loops, archive)
    assert user.git("for-each-ref") == before
    assert there.ledger.loops() == []


def test_a_damaged_pack_is_refused(
    moved: tuple[CodingLoop, dict[str, Any]], user: UserRepository
) -> None:
    there, records = moved
    commit = user.git("rev-parse", "main")
    for data in (b"PACK" + struct.pack(">II", 2, 4_000_000_000), b"nothing", b""):
        archive = packed(records, refs={"refs/heads/mulligan/demo": commit}, pack=io.BytesIO(data))
        with pytest.raises(BadInput, match="its objects are refused"):
            imported(there.services.loops, archive)


def test_references_without_a_repository_are_refused(
    here: LoopScenario, there: LoopScenario
) -> None:
    archive = packed(records_of(here), refs={"refs/heads/mulligan/alpha": "1" * 40})
    with pytest.raises(BadInput, match="works in no repository"):
        imported(there.context, archive)
