"""Settings of the shop, for one machine."""

import os
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[1]

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "not secret, since this is an example")
DEBUG = os.environ.get("SHOP_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
LOGIN_URL = "admin:login"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "eventmq_contrib.django",
    "orders",
]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", ROOT / "shop.sqlite3"),
        # The server and the workers write: each waits for the others.
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    },
}

# The broker is that of EVENTMQ_BROKER, or the one on this machine.
TASKS = {
    "default": {
        "BACKEND": "eventmq_contrib.django.EventMQBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"outbox": os.environ.get("SHOP_OUTBOX") == "1"},
    },
}

TEST_RUNNER = "eventmq_contrib.django.EventMQTestRunner"
