"""What people type into the search box stands on a page."""

from __future__ import annotations

import re

import pytest

from tests.support.page_files import ROOT

TEXT = "\n".join(
    re.sub(r"\s+", " ", path.read_text(encoding="utf-8").replace("-", " ")).lower()
    for path in (ROOT / "docs").rglob("*.rst")
    if "lab" not in path.parts
)

WORDS = (
    "autoscale", "background job", "dashboard", "dead letter", "debounce", "deploy", "django",
    "docker", "faq", "fastapi", "flask", "idempotency key", "idempotent", "kubernetes",
    "memory leak", "opentelemetry", "prometheus", "sentry", "systemd", "task queue", "throttle",
    "troubleshooting", "upgrade", "visibility timeout",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_people_search_for_is_on_a_page(word: str) -> None:
    assert word in TEXT
