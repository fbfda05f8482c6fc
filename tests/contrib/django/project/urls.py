"""The dashboard."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("eventmq/", include("eventmq_contrib.django.dashboard"))]
