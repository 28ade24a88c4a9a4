"""
Settings, all from the environment. README lists the variables; a missing or bad one stops the start with one sentence.

A process gets only what it needs: the pages have DATABASE_URL and ACCOUNTS_DATABASE_URL, workers WORKER_DATABASE_URL and
KEEPER_DATABASE_URL, migrations OWNER_DATABASE_URL. An alias without its URL does not exist in that process.
"""

import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.utils.csp import CSP

from dashboard import environment, logs

ROOT = Path(__file__).resolve().parent.parent

DEBUG = environment.flag("FENCEWATCH_DEBUG")
DEMO = environment.flag("FENCEWATCH_DEMO")
# Cookies without Secure, no HSTS, no redirect to https: for the demo and the tests on the loopback address only.
INSECURE_HTTP = environment.flag("FENCEWATCH_INSECURE_HTTP")
SERVES_PAGES = bool(environment.text("DATABASE_URL"))

# ---------------------------------------------------------------------------------------------------------------------
# Databases: one alias per role
# ---------------------------------------------------------------------------------------------------------------------
_POOL = environment.number("FENCEWATCH_POOL_SIZE", default=8, least=0, most=100)
# The pages keep nothing on a session, and their roles bring their timeouts along (see `manage.py roles`): a pooler in
# transaction mode may stand between. Workers and keepers need connections of their own.
# The guard takes a session as one that stamps its effects only if it says so; see design of the begin verb.
_WORKS = {
    "plan_cache_mode": "force_generic_plan",
    "fencewatch.worker": "stamps",
    "idle_in_transaction_session_timeout": "60s",
}
_ROLES = {
    "default": environment.database("DATABASE_URL", application="web", settings=None, pool=_POOL),
    "accounts": environment.database("ACCOUNTS_DATABASE_URL", application="accounts", settings=None, pool=_POOL),
    "worker": environment.database("WORKER_DATABASE_URL", application="worker", settings=_WORKS, prepare_threshold=1),
    "keeper": environment.database("KEEPER_DATABASE_URL", application="keeper", settings=_WORKS, prepare_threshold=1),
    "owner": environment.database(
        "OWNER_DATABASE_URL", application="owner", settings={}, assume_role="fencewatch_owner"
    ),
}
DATABASES = {alias: database for alias, database in _ROLES.items() if database}
# Django insists on this alias; where it has no URL, using it says which variable is missing.
DATABASES.setdefault("default", {"ENGINE": "dashboard.absent"})
DATABASE_ROUTERS = ["workitems.tenancy.Router"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if SERVES_PAGES:
    environment.required("ACCOUNTS_DATABASE_URL", because="the pages keep users and sessions under that role")

# ---------------------------------------------------------------------------------------------------------------------
# Secrets and names
# ---------------------------------------------------------------------------------------------------------------------
# Workers and migrations sign nothing: they get a key that nobody else has.
SECRET_KEY = environment.text("FENCEWATCH_SECRET_KEY", default="" if SERVES_PAGES else secrets.token_urlsafe(64))
if len(SECRET_KEY) < 50:
    raise ImproperlyConfigured(
        "FENCEWATCH_SECRET_KEY is missing or shorter than 50 characters: make one with `openssl rand -base64 48`."
    )
# Signs operators' contexts; the same key is in the database (fencewatch.context_key).
CONTEXT_KEY = environment.key("FENCEWATCH_CONTEXT_KEY")
if SERVES_PAGES and CONTEXT_KEY is None:
    raise ImproperlyConfigured(
        "FENCEWATCH_CONTEXT_KEY is missing: the pages sign what each person may see; make one with `openssl rand -hex 32`."
    )
ALLOWED_HOSTS = environment.words("FENCEWATCH_ALLOWED_HOSTS")
if SERVES_PAGES and (not ALLOWED_HOSTS or "*" in ALLOWED_HOSTS):
    raise ImproperlyConfigured("FENCEWATCH_ALLOWED_HOSTS is missing or holds *: name the hosts, separated by commas.")
URL = environment.address("FENCEWATCH_URL", schemes=("http",) if INSECURE_HTTP else ("https",))
FORCE_SCRIPT_NAME = environment.path_prefix("FENCEWATCH_SCRIPT_NAME")

# ---------------------------------------------------------------------------------------------------------------------
# Django
# ---------------------------------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "django_structlog",
    "django_tables2",
    "workitems",
    "dashboard",
    *(["dashboard.demo"] if DEMO else []),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "dashboard.middleware.NoStore",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.middleware.SessionLimits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "dashboard.middleware.SlowReads",
]
ROOT_URLCONF = "dashboard.urls"
WSGI_APPLICATION = "dashboard.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
LANGUAGE_CODE = "en-gb"
USE_TZ = True
TIME_ZONE = "UTC"

# Django puts a sub-path in front of a relative address only once it has seen a request, and keeps what it saw first.
STATIC_URL = f"{FORCE_SCRIPT_NAME or ''}/static/"
STATIC_ROOT = Path(environment.text("FENCEWATCH_STATIC_ROOT", default=str(ROOT / "staticfiles")))
STATICFILES_DIRS = [ROOT / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

# ---------------------------------------------------------------------------------------------------------------------
# People
# ---------------------------------------------------------------------------------------------------------------------
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "sign-in"
CSRF_FAILURE_VIEW = "dashboard.views.unproven"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SESSION_IDLE_SECONDS = 15 * 60
SESSION_ABSOLUTE_SECONDS = 8 * 60 * 60
SESSION_COOKIE_AGE = SESSION_ABSOLUTE_SECONDS

# ---------------------------------------------------------------------------------------------------------------------
# The browser's side of security
# ---------------------------------------------------------------------------------------------------------------------
SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
    "base-uri": [CSP.NONE],
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# The proxy ends TLS. gunicorn takes the scheme from it only for the addresses in FENCEWATCH_PROXY_ADDRESSES; Django's
# SECURE_PROXY_SSL_HEADER would believe the header of anybody who reaches the port, so it stays unset.
SECURE_SSL_REDIRECT = not INSECURE_HTTP
SECURE_HSTS_SECONDS = 0 if INSECURE_HTTP else 365 * 24 * 60 * 60
SECURE_HSTS_INCLUDE_SUBDOMAINS = not INSECURE_HTTP
SECURE_HSTS_PRELOAD = not INSECURE_HTTP
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not INSECURE_HTTP
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
# __Host- binds a cookie to this very host and the path /, which browsers only accept together with Secure.
SESSION_COOKIE_NAME = "fencewatch_session" if INSECURE_HTTP else "__Host-fencewatch_session"
CSRF_COOKIE_NAME = "fencewatch_csrf" if INSECURE_HTTP else "__Host-fencewatch_csrf"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"

# ---------------------------------------------------------------------------------------------------------------------
# Celery: wake-ups without data. A lost one costs a sweep, a repeated one is harmless; the table is the record.
# ---------------------------------------------------------------------------------------------------------------------
JOB_MODULES = environment.words("FENCEWATCH_JOB_MODULES")
WAKE_EVERY_SECONDS = environment.number("FENCEWATCH_WAKE_EVERY_SECONDS", default=2, least=1, most=3600)
SWEEP_EVERY_SECONDS = environment.number("FENCEWATCH_SWEEP_EVERY_SECONDS", default=5, least=1, most=3600)
SEAL_EVERY_SECONDS = environment.number("FENCEWATCH_SEAL_EVERY_SECONDS", default=10, least=1, most=3600)
# How long one wake-up goes on claiming, and how long the item in hand may then take before the worker breaks it off.
WAKE_BUDGET_SECONDS = environment.number("FENCEWATCH_WAKE_BUDGET_SECONDS", default=10, least=1, most=3600)
WAKE_SOFT_LIMIT_SECONDS = environment.number("FENCEWATCH_WAKE_SOFT_LIMIT_SECONDS", default=300, least=10, most=86_400)
# A wake-up that waited longer than this in the broker is dropped: the next beat is here already.
WAKE_EXPIRES_SECONDS = 30
CELERY_BROKER_URL = environment.address("CELERY_BROKER_URL", schemes=("redis", "rediss", "amqp", "amqps"))
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_DEFAULT_QUEUE = "fencewatch"
CELERY_TASK_PUBLISH_RETRY = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
if CELERY_BROKER_URL.startswith("redis"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        # Redelivery happens after visibility_timeout at the next scan, and a scan runs every interval * throttle seconds.
        "visibility_timeout": 60,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        # What a publisher does when the broker is away: one more try, then go on without it. Workers reconnect for ever.
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.1,
    }
CELERY_TIMEZONE = "UTC"
# Reuse a task's database connections; a broken one is closed by Django's own check.
CELERY_DB_REUSE_MAX = 1000

# ---------------------------------------------------------------------------------------------------------------------
# Logs: one JSON object a line, digests only
# ---------------------------------------------------------------------------------------------------------------------
LOGGING_CONFIG = None
LOGGING = logs.configuration(level=environment.text("FENCEWATCH_LOG_LEVEL", default="INFO"))
logs.configure(LOGGING)
DJANGO_STRUCTLOG_IP_LOGGING_ENABLED = False
DJANGO_STRUCTLOG_CELERY_ENABLED = False
DJANGO_STRUCTLOG_STATUS_4XX_LOG_LEVEL = 20  # logging.INFO: a refused or missing page is not an error of ours
DJANGO_STRUCTLOG_TRUST_UPSTREAM_REQUEST_ID = False
DJANGO_STRUCTLOG_TRUST_UPSTREAM_CORRELATION_ID = False
