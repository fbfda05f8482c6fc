"""Settings of a project whose view enqueues a task."""

from __future__ import annotations

import os

import django

SECRET_KEY = "benchmark"  # noqa: S105 - nothing is signed
USE_TZ = True
TIME_ZONE = "UTC"
LOGGING_CONFIG = None
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "benchmarks.django_project.urls"
INSTALLED_APPS = ["eventmq_contrib.django", "benchmarks.django_project"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["BENCHMARK_DATABASE"],
        "OPTIONS": {"init_command": "PRAGMA journal_mode = WAL"},
    },
}
TASKS = {
    "default": {
        "BACKEND": "eventmq_contrib.django.EventMQBackend",
        "OPTIONS": {"broker": os.environ["BENCHMARK_BROKER"]},
    },
}
