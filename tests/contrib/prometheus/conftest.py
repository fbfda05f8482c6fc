"""A PostgreSQL for the brokers that Prometheus scrapes."""

from __future__ import annotations

from tests.support.postgres_fixtures import database_url, postgres

__all__ = ["database_url", "postgres"]
