"""Side by side in one run: plain Celery against mulligan. See README.md for the caveats."""
