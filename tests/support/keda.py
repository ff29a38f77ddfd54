"""Schemas of KEDA's custom resources, which no installable package provides."""

from __future__ import annotations

from typing import Any

#: From KEDA's documentation, limited to the fields that deploy/ uses.
KEDA: dict[str, Any] = {
    "ScaledObject": {
        "type": "object",
        "required": ["scaleTargetRef", "triggers"],
        "additionalProperties": False,
        "properties": {
            "scaleTargetRef": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {key: {"type": "string"} for key in ("apiVersion", "kind", "name")},
            },
            "pollingInterval": {"type": "integer", "minimum": 1},
            "cooldownPeriod": {"type": "integer", "minimum": 0},
            "minReplicaCount": {"type": "integer", "minimum": 0},
            "maxReplicaCount": {"type": "integer", "minimum": 1},
            "advanced": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "restoreToOriginalReplicaCount": {"type": "boolean"},
                    "horizontalPodAutoscalerConfig": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"name": {"type": "string"}, "behavior": {"type": "object"}},
                    },
                },
            },
            "triggers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["type", "metadata"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"const": "metrics-api"},
                        "metricType": {"enum": ["AverageValue", "Value"]},
                        "metadata": {
                            "type": "object",
                            "required": ["url", "valueLocation", "targetValue"],
                            "additionalProperties": False,
                            "properties": {
                                "url": {"type": "string", "pattern": "^https?://"},
                                "valueLocation": {"type": "string"},
                                "targetValue": {"type": "string", "pattern": r"^\d+(\.\d+)?$"},
                                "activationTargetValue": {"type": "string"},
                                "authMode": {"enum": ["apiKey", "basic", "tls", "bearer"]},
                                "unsafeSsl": {"enum": ["true", "false"]},
                                "format": {"type": "string"},
                            },
                        },
                        "authenticationRef": {
                            "type": "object",
                            "required": ["name"],
                            "additionalProperties": False,
                            "properties": {"name": {"type": "string"}, "kind": {"type": "string"}},
                        },
                    },
                },
            },
        },
    },
    "TriggerAuthentication": {
        "type": "object",
        "required": ["secretTargetRef"],
        "additionalProperties": False,
        "properties": {
            "secretTargetRef": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["parameter", "name", "key"],
                    "additionalProperties": False,
                    "properties": {key: {"type": "string"} for key in ("parameter", "name", "key")},
                },
            }
        },
    },
}
