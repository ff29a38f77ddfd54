"""Flower's configuration for Procfile and docker-compose.yml: what is not shown."""

from mulligan.workers.celery.flower_format import format_task, require_broker  # noqa: F401 - Flower looks for format_task

require_broker()
