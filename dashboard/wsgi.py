"""The pages, for gunicorn: `gunicorn --config deploy/gunicorn.py dashboard.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application

from dashboard import environment

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
environment.required("DATABASE_URL", because="the pages read the work table under that role")

application = get_wsgi_application()
