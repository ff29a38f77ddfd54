"""deploy/ and docker-compose.yml: valid schemas, matching names, sufficient grace periods."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate  # type: ignore[import-untyped]
import promql_parser
import pytest
from support.deploy_files import KUBERNETES, Document, container, documents, manifests, of_kind, pod
from support.keda import KEDA

from mulligan.policies.jobs.job import parse_duration
from mulligan.policies.jobs.sweep_health import LATE_SECONDS
from mulligan.tasks.jobs import attempt as attempt_task
from mulligan.workers.celery.broker.queues import AGENT_REPAIR_QUEUE, POOLS
from mulligan.workers.liveness_file import LivenessFile
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.settings.profile_pools import LONGEST_CLAIM

ROOT = Path(__file__).resolve().parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"
SCALED = {pool.name for pool in POOLS if pool.scalable}
AGENTS = {pool.name for pool in POOLS if AGENT_REPAIR_QUEUE in pool.queues}

#: Every metric that /metrics serves, with the labels that queries may use.
METRICS: dict[str, set[str]] = {
    "mulligan_attempts_total": {"mode", "outcome", "kind"},
    "mulligan_jobs_total": {"state"},
    "mulligan_score": {"le"},
    "mulligan_retry_latency_seconds": {"le"},
    "mulligan_cycles_total": {"status"},
    "mulligan_escalations_total": {"reason"},
    "mulligan_events_missed_total": set(),
    "mulligan_queue_depth": {"queue", "priority"},
    "mulligan_queue_oldest_seconds": {"queue"},
    "mulligan_slots": {"pool"},
    "mulligan_active": {"pool"},
    "mulligan_workers": {"pool"},
    "mulligan_tokens_total": {"runner", "direction", "repair"},
    "mulligan_breaker_state": {"provider"},
    "mulligan_provider_limit": {"provider"},
    "mulligan_provider_in_flight": {"provider"},
    "mulligan_parked": {"reason"},
    "mulligan_parked_oldest_seconds": {"reason"},
    "mulligan_escalations_open": set(),
    "mulligan_escalation_groups_open": set(),
    "mulligan_ledger_round_trips_total": {"worker"},
    "mulligan_ledger_stores": set(),
    "mulligan_outbox_quarantined": set(),
    "mulligan_submissions_refused": set(),
    "mulligan_ledger_waiting": {"pool"},
    "mulligan_sweep_age_seconds": set(),
    "mulligan_fold_lag_seconds": set(),
    "mulligan_webhook_deliveries": {"state"},
    "mulligan_paused": {"what"},
}
HISTOGRAMS = {"mulligan_score", "mulligan_retry_latency_seconds"}


def settings_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    path = folder / "mulligan.toml"
    path.write_text(text)
    monkeypatch.setenv("MULLIGAN_CONFIG", str(path))
    return load_settings()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings in the ConfigMap."""
    text = of_kind("ConfigMap")["mulligan"]["data"]["mulligan.toml"]
    return settings_of(text, tmp_path, monkeypatch)


# -- kubernetes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(manifests()), ids="/".join)
def test_every_manifest_fits_its_schema(key: tuple[str, str]) -> None:
    document = manifests()[key]
    if document["apiVersion"].startswith("keda.sh/"):
        assert document["apiVersion"] == "keda.sh/v1alpha1"
        jsonschema_rs.validator_for(KEDA[document["kind"]]).validate(document["spec"])
    else:
        newest = kubernetes_validate.latest_version()
        kubernetes_validate.validate(document, newest, strict=True)
    expected = "mulligan" if document["kind"] != "Namespace" else None
    assert document["metadata"].get("namespace") == expected


def test_the_kustomization_has_every_file_except_the_example_secret() -> None:
    (root,) = documents(KUBERNETES / "kustomization.yaml")
    files = {path.name for path in KUBERNETES.glob("*.yaml")}
    assert set(root["resources"]) == files - {"kustomization.yaml", "secret.example.yaml"}
    images = {container(name)["image"] for name in of_kind("Deployment")}
    assert images == {image["name"] for image in root["images"]}


def test_the_example_secret_contains_no_secret() -> None:
    for value in of_kind("Secret")["mulligan"]["stringData"].values():
        assert "REPLACE_ME" in value


def test_no_pod_is_stopped_during_an_attempt(settings: Settings) -> None:
    """A claim lasts at most hard_limit, an attempt its runner's timeout plus slack."""
    profiles = [parse_duration(r["timeout"]) for r in settings.runners.values() if "timeout" in r]
    longest = max([settings.runner_timeout, *profiles]) + attempt_task.SLACK
    assert longest <= settings.hard_limit
    for name in SCALED:
        limit = LONGEST_CLAIM if name in AGENTS else settings.hard_limit
        assert pod(name)["terminationGracePeriodSeconds"] > limit
        environment = {item["name"] for item in container(name)["env"]}
        assert "REMAP_SIGTERM" not in environment


def references() -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, key) of every reference to a Secret or a ConfigMap."""
    for name in of_kind("Deployment"):
        for item in container(name)["env"]:
            source = item.get("valueFrom", {})
            for kind, field in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
                if field in source:
                    yield kind, source[field]["name"], source[field]["key"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container(name)["volumeMounts"]}
        for volume in pod(name)["volumes"]:
            if "configMap" not in volume:
                continue
            folder = mounts[volume["name"]]
            words = [
                *container(name)["command"],
                *(i.get("value", "") for i in container(name)["env"]),
            ]
            for file in re.findall(rf"{folder}/([\w.]+)", " ".join(words)):
                yield "ConfigMap", volume["configMap"]["name"], file
    for each in of_kind("TriggerAuthentication").values():
        for target in each["spec"]["secretTargetRef"]:
            yield "Secret", target["name"], target["key"]


def test_every_referenced_key_exists_and_every_key_is_used() -> None:
    used = set(references())
    existing = {
        (kind, name, key)
        for kind in ("Secret", "ConfigMap")
        for name, document in of_kind(kind).items()
        for key in document.get("stringData", document.get("data", {}))
    }
    assert used == existing


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_selectors_match_their_pods() -> None:
    deployments = of_kind("Deployment")
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"] for name, each in deployments.items()
    }

    def found(selector: Mapping[str, str]) -> set[str]:
        return {name for name, has in labels.items() if selects(selector, has)}

    for name, each in deployments.items():
        assert found(each["spec"]["selector"]["matchLabels"]) == {name}
    for name, each in of_kind("Service").items():
        assert found(each["spec"]["selector"]) == {name}
        (port,) = each["spec"]["ports"]
        assert port["targetPort"] in {p["name"] for p in container(name)["ports"]}
    budgets = of_kind("PodDisruptionBudget")
    assert set(budgets) == SCALED | {"console"}
    for name, each in budgets.items():
        assert found(each["spec"]["selector"]["matchLabels"]) == {name}
    policies = {
        n: each["spec"]["podSelector"].get("matchLabels", {})
        for n, each in of_kind("NetworkPolicy").items()
    }
    assert found(policies["https"]) == {"control", "repair", "attempt", *AGENTS}, (
        "verify runs foreign code"
    )
    assert found(policies["redis"]) == set(deployments)
    assert (found(policies["console"]), found(policies["flower"])) == ({"console"}, {"flower"})
    deny = of_kind("NetworkPolicy")["default-deny"]["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_keda_reads_the_scale_from_the_console() -> None:
    service = of_kind("Service")["console"]
    (port,) = service["spec"]["ports"]
    for name, each in of_kind("ScaledObject").items():
        spec = each["spec"]
        assert spec["scaleTargetRef"]["name"] == name
        assert "replicas" not in of_kind("Deployment")[name]["spec"], "KEDA sets the replicas"
        assert spec["minReplicaCount"] < spec["maxReplicaCount"]
        (trigger,) = spec["triggers"]
        base = f"http://console.{service['metadata']['namespace']}.svc:{port['port']}"
        assert trigger["metadata"]["url"] == f"{base}/api/scale/{name}"
        assert trigger["metadata"]["valueLocation"] == "value"
        assert trigger["metadata"]["authMode"] == "bearer"
        # A ratio over all pods, not an average per pod.
        assert trigger["metricType"] == "Value"
        authentication = of_kind("TriggerAuthentication")[trigger["authenticationRef"]["name"]]
        assert authentication["spec"]["secretTargetRef"][0]["parameter"] == "token"
    assert of_kind("ScaledObject")["repair"]["spec"]["minReplicaCount"] >= 1, (
        "a retry must never wait for a pod"
    )


@pytest.mark.parametrize("name", sorted(of_kind("Deployment")))
def test_every_pod_is_locked_down_and_has_probes(name: str) -> None:
    spec, box = pod(name), container(name)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert box["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert box["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in box["resources"]["limits"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= box.keys()
    secrets = {item["name"] for item in box["env"] if "secretKeyRef" in item.get("valueFrom", {})}
    assert ("MODEL_KEY" in secrets) == (name in ("repair", "attempt", *AGENTS))
    for item in box["env"]:
        secret = any(word in item["name"] for word in ("KEY", "AUTH", "TOKEN", "URL"))
        assert not secret or "valueFrom" in item or "RUNBOOK" in item["name"]


def test_probes_read_the_liveness_file_of_the_worker() -> None:
    for name in (pool.name for pool in POOLS):
        home = next(i["value"] for i in container(name)["env"] if i["name"] == "MULLIGAN_HOME")
        file = LivenessFile(home=Path(home), name=f"{name}@host").path
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            words = container(name)[probe]["exec"]["command"]
            ready = ["--ready"] if probe == "readinessProbe" else []
            assert words == ["mulligan", "probe", name, *ready]
        mounts = [Path(mount["mountPath"]) for mount in container(name)["volumeMounts"]]
        assert any(mount in file.parents for mount in mounts), "the root filesystem is read-only"
    flower = shlex.join(container("flower")["command"])
    assert "--read_only=True" in flower


# -- compose ---------------------------------------------------------------------------------------


def test_pools_of_compose_can_be_scaled_and_finish_their_attempts() -> None:
    (data,) = documents(ROOT / "docker-compose.yml")
    services = data["services"]
    longest = Settings().runner_timeout + attempt_task.SLACK
    for name in SCALED:
        assert "container_name" not in services[name]
        assert "ports" not in services[name], "two containers cannot share a port"
        limit = LONGEST_CLAIM if name in AGENTS else longest
        assert parse_duration(services[name]["stop_grace_period"]) > limit
    console = services["console"]
    assert console["command"] == "mulligan console --host 0.0.0.0 --port 8700"
    assert console["healthcheck"]["test"] == ["CMD", "mulligan", "probe", "console"]


# -- observability ---------------------------------------------------------------------------------


def alerts() -> dict[str, Document]:
    (rules,) = documents(OBSERVABILITY / "rules.yml")
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}


def dashboard() -> Document:
    data: Document = json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text("utf-8"))
    return data


def queries() -> list[tuple[str, str]]:
    found = [(name, rule["expr"]) for name, rule in alerts().items()]
    panels = dashboard()["panels"]
    return found + [(p["title"], t["expr"]) for p in panels for t in p["targets"]]


@pytest.mark.parametrize(("where", "text"), queries())
def test_every_query_is_valid_and_uses_existing_metrics_and_labels(where: str, text: str) -> None:
    selectors = vector_selectors(promql_parser.parse(text))
    assert selectors, where
    for selector in selectors:
        if selector.name == "up":
            continue
        name = selector.name.removesuffix("_bucket")
        assert name in METRICS, f"{where}: {selector.name}"
        assert (name in HISTOGRAMS) == selector.name.endswith("_bucket")
        used = {matcher.name for matcher in selector.matchers.matchers}
        assert used <= METRICS[name], where
    grouped = re.findall(r"\bby \(([^)]*)\)", text)
    labels = {label.strip() for group in grouped for label in group.split(",")}
    known = set().union(*(METRICS.get(s.name.removesuffix("_bucket"), set()) for s in selectors))
    assert labels <= known, where


def vector_selectors(expression: Any) -> list[Any]:
    """Return every selector in an expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        return [expression]
    if isinstance(expression, promql_parser.MatrixSelector):
        return [expression.vector_selector]
    below: list[Any] = []
    for name in ("lhs", "rhs", "expr"):
        if (child := getattr(expression, name, None)) is not None:
            below.append(child)
    below += getattr(expression, "args", None) or []
    return [found for child in below for found in vector_selectors(child)]


def kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


@pytest.mark.parametrize("name", sorted(alerts()))
def test_every_alert_has_a_summary_and_a_runbook_link(name: str) -> None:
    rule = alerts()[name]
    assert rule["for"]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook_url"].endswith(f"/docs/runbook.md#{kebab(name)}")


def test_the_required_alerts_exist() -> None:
    assert alerts().keys() >= {
        "MulliganDown", "NotReady", "SweepStale", "RetryLatencyHigh", "EscalationsRising",
        "BreakerOpen", "QueueOldest", "NoWorkers", "CompletionRateLow", "WebhooksDead", "FoldLag",
        "BudgetExhausted",
    }  # fmt: skip


def test_the_alert_on_the_sweep_has_the_limit_of_the_console() -> None:
    assert alerts()["SweepStale"]["expr"] == f"mulligan_sweep_age_seconds > {LATE_SECONDS:g}"
    runbook = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    assert f"has not swept for {LATE_SECONDS:g} s" in runbook


def test_the_runbook_has_a_section_for_every_alert() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}
    assert {kebab(name) for name in alerts()} <= anchors


def test_prometheus_scrapes_the_console_with_a_token() -> None:
    (config,) = documents(OBSERVABILITY / "prometheus.yml")
    assert config["rule_files"] == ["rules.yml"]
    (scrape,) = config["scrape_configs"]
    assert scrape["job_name"] == "mulligan"
    assert (scrape["metrics_path"], scrape["authorization"]["type"]) == ("/metrics", "Bearer")
    assert "credentials" not in scrape["authorization"], "the token belongs in a file"


def test_the_dashboard_is_valid_and_shows_every_metric() -> None:
    data = dashboard()
    ids = [panel["id"] for panel in data["panels"]]
    assert len(set(ids)) == len(ids)
    assert data["uid"] == "mulligan"
    for panel in data["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
    shown = {
        name.removesuffix("_bucket")
        for _, text in queries()
        for name in re.findall(r"mulligan_\w+", text)
    }
    assert shown == set(METRICS)
