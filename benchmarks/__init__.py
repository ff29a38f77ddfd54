"""Plain Celery and mulligan, compared in one run. See README.md for the caveats."""
