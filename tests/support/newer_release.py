"""A later release, whose jobs have one more field: `celery -A support.newer_release`.

As a Celery app it replaces the job's class and the schema before anything else is imported.
"""

from __future__ import annotations

import sys

from mulligan.policies.jobs import job as job_module
from mulligan.workers.ledger.stored import schema as schema_module
from mulligan.workers.ledger.stored.schema import StoredSchema


class Job(job_module.Job):
    region: str | None = None


_NUMBER = schema_module.CURRENT.number + 1
SCHEMA = StoredSchema(number=_NUMBER, release="9.1.0", added={"Job.region": _NUMBER})

if "celery" in sys.argv[0]:
    setattr(job_module, "Job", Job)  # noqa: B010 - a type checker refuses the assignment
    setattr(schema_module, "CURRENT", SCHEMA)  # noqa: B010
    from mulligan.workers.celery.factory import create_app
    from mulligan.workers.settings.model import load_settings

    app = create_app(load_settings())
