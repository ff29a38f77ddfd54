"""Redis 7.0, RabbitMQ and bubblewrap for the tests: Debian's packages, extracted below .venv.

`make test` runs it as a program. Nothing is installed: no root is needed, no service starts, and
the PATH stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv"
#: The root of the extracted packages.
FOLDER = ENVIRONMENT / "debian"
REDIS = FOLDER / "redis-server"
#: A directory for the end of the PATH, with bubblewrap alone.
TOOLS = FOLDER / "tools"
#: Debian's script runs the server as the current user; the one on the PATH wants to be root's.
_RABBITMQ = "usr/lib/rabbitmq/bin/rabbitmq-server"
PACKAGES = ("redis-server", "rabbitmq-server", "bubblewrap")
#: A computer without network finds out soon.
_LIMITS = ("Acquire::Retries=0", "Acquire::http::Timeout=10", "Acquire::https::Timeout=10")
_SECONDS = 180.0


def rabbitmq_program() -> Path | None:
    """Return RabbitMQ's program: the installed one, else the extracted one."""
    return next((path for root in (Path("/"), FOLDER) if (path := root / _RABBITMQ).exists()), None)


def main() -> int:
    has_redis = REDIS.exists() or shutil.which("redis-server")
    if rabbitmq_program() and has_redis and shutil.which("bwrap", path=tools_path()):
        return 0
    if shutil.which("apt-get") is None:
        print("no apt-get: tests on Redis 7.0, RabbitMQ and bubblewrap are skipped without these")
        return 0
    print(f"extracting Debian's {', '.join(PACKAGES)} for the tests …", flush=True)
    with tempfile.TemporaryDirectory(prefix="debian-", dir=ENVIRONMENT) as name:
        try:
            root = extract(download(Path(name)), Path(name, "root"))
            shutil.rmtree(FOLDER, ignore_errors=True)
            root.rename(FOLDER)
        except (OSError, subprocess.SubprocessError) as error:
            print((getattr(error, "stderr", None) or str(error)).strip())
            print("without them, the tests on them are skipped, and fail in CI")
    return 0


def download(folder: Path) -> list[Path]:
    """Download the packages and those that they need, except what is installed already."""
    archives, lists = folder / "archives", folder / "lists"
    for each in (archives, lists):
        (each / "partial").mkdir(parents=True)
    want = ["install", "--yes", "--no-install-recommends", "--download-only", *PACKAGES]
    known = [f"Dir::Cache::archives={archives}"]
    try:
        _apt_get(known, *want)
    except subprocess.CalledProcessError:  # the computer's lists are missing, or too old
        known.append(f"Dir::State::lists={lists}")
        _apt_get(known, "update")
        _apt_get(known, *want)
    return sorted(archives.glob("*.deb"))


def _apt_get(options: list[str], *arguments: str) -> None:
    ours = ("Debug::NoLocking=1", "APT::Sandbox::User=root", *_LIMITS, *options)
    argv = ["apt-get", "-qq", *(f"-o{each}" for each in ours), *arguments]
    subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_SECONDS)


def extract(packages: list[Path], root: Path) -> Path:
    """Extract the packages for a use in FOLDER."""
    root.mkdir()
    for package in packages:
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, capture_output=True)
    if (root / "usr/bin/redis-server").exists():
        script = root / REDIS.name
        libraries = ":".join(
            str(FOLDER / each.relative_to(root)) for each in root.glob("usr/lib/*-linux-gnu")
        )
        script.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {FOLDER}/usr/bin/redis-server "$@"\n'
        )
        script.chmod(0o755)
    if (root / "usr/bin/bwrap").exists():
        (root / TOOLS.name).mkdir()
        (root / TOOLS.name / "bwrap").symlink_to("../usr/bin/bwrap")
    erlang = root / "usr/lib/erlang/bin/erl"
    if erlang.exists():
        text = erlang.read_text()
        erlang.write_text(text.replace("=/usr/lib/erlang", f"={FOLDER}/usr/lib/erlang"))
    return root


def tools_path() -> str:
    """Return the PATH with bubblewrap at its end, for all tests."""
    return os.pathsep.join([os.environ["PATH"], str(TOOLS)])


def search_path() -> str:
    """Return the PATH with the extracted programs, for RabbitMQ, which runs Erlang's."""
    return os.pathsep.join([str(FOLDER / "usr/bin"), os.environ["PATH"]])


if __name__ == "__main__":
    sys.exit(main())
