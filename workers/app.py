"""`celery -A mulligan.workers.app`: the Celery app with this environment's settings."""

from mulligan.workers.celery.factory import create_app
from mulligan.workers.settings.model import load_settings

app = create_app(load_settings())
