"""Settings of the project that the tests and their workers share; FOLDER and others say where."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import django

FOLDER = Path(os.environ["PROJECT_FOLDER"])
BROKER = os.environ["PROJECT_BROKER"]
BACKEND = "eventmq_contrib.django.EventMQBackend"
QUEUES = ["default", "mail", "spare"]

SECRET_KEY = "k" * 50
USE_TZ = True
TIME_ZONE = "UTC"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
ROOT_URLCONF = "tests.contrib.django.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGIN_URL = "/login/"
LOGGING_CONFIG = None
INSTALLED_APPS = [
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "eventmq_contrib.django",
    "tests.contrib.django.project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "project.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    },
}
if url := os.environ.get("PROJECT_POSTGRESQL"):
    parts = urlsplit(url)
    DATABASES["postgresql"] = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "NAME": parts.path[1:],
        "OPTIONS": {"application_name": os.environ.get("PROJECT_NAME", "tests")},
        **json.loads(os.environ.get("PROJECT_DATABASE", "{}")),
    }
    if os.environ.get("PROJECT_DEFAULT") == "postgresql":
        DATABASES = {"default": DATABASES["postgresql"]}


def _backend(**options: object) -> dict[str, object]:
    return {"BACKEND": BACKEND, "QUEUES": QUEUES, "OPTIONS": {"broker": BROKER, **options}}


TASKS = {
    "default": _backend(),
    "outbox": _backend(outbox=True),
    "at_once": _backend(on_commit=False),
    "derived": {**_backend(), "BACKEND": "tests.contrib.django.project.backends.Derived"},
    "long_path": {**_backend(), "BACKEND": "eventmq_contrib.django.backend.EventMQBackend"},
    "any_queue": {**_backend(), "QUEUES": []},
    "memory": {
        "BACKEND": BACKEND,
        "OPTIONS": {"app": "tests.contrib.django.project.apps:memory"},
    },
    "away": {
        "BACKEND": BACKEND,
        "OPTIONS": {"app": "tests.contrib.django.project.apps:away"},
    },
}
if "postgresql" in DATABASES:
    TASKS["postgresql"] = _backend(database="postgresql")
    TASKS["postgresql_outbox"] = _backend(database="postgresql", outbox=True)
