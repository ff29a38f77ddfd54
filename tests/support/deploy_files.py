"""The files that run the pools, as values: Kubernetes manifests, docker-compose.yml, Procfile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
Document = Mapping[str, Any]


@cache
def documents(path: Path) -> list[Document]:
    return [each for each in YAML(typ="safe").load_all(path.read_text("utf-8")) if each]


@cache
def manifests() -> dict[tuple[str, str], Document]:
    """Return every manifest by kind and name."""
    found: dict[tuple[str, str], Document] = {}
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for document in documents(path):
            if document["kind"] == "Kustomization":
                continue
            key = (document["kind"], document["metadata"]["name"])
            assert key not in found, f"{key} is defined twice"
            found[key] = document
    return found


def of_kind(kind: str) -> dict[str, Document]:
    return {name: each for (found, name), each in manifests().items() if found == kind}


def pod(name: str) -> dict[str, Any]:
    deployments = of_kind("Deployment")
    assert name in deployments, f"add {name} to deploy/kubernetes/"
    spec: dict[str, Any] = deployments[name]["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    found: dict[str, Any] = only
    return found


def compose() -> dict[str, Any]:
    (data,) = documents(ROOT / "docker-compose.yml")
    return dict(data)


def procfile() -> dict[str, str]:
    """Return the command of each process, in the file's order."""
    lines = (ROOT / "Procfile").read_text("utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if not line.startswith("#"))
