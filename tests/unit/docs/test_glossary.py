"""Each word of the glossary is defined once, briefly, and linked from the pages."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
GLOSSARY = DOCS / "reference" / "glossary.rst"
#: Term -> definition.
TERMS = [
    (term, " ".join(text.split()))
    for term, text in re.findall(
        r"^   (?! |:)(.+)\n((?:      .+\n|\n(?=      ))+)",
        GLOSSARY.read_text("utf-8"),
        re.MULTILINE,
    )
]


def test_every_word_is_defined_once_in_whole_sentences() -> None:
    words = [term for term, _ in TERMS]
    assert len(words) > 50
    assert len(words) == len(set(words))
    assert [] == [term for term, text in TERMS if not re.match(r"[A-Z:].*\.$", text)]


def test_every_word_is_linked_from_a_page() -> None:
    linked = {
        (link[2] or link[1]).strip()
        for page in DOCS.rglob("*.rst")
        if page != GLOSSARY
        for link in re.finditer(
            r":term:`([^`<]+)(?:<([^`>]+)>)?`", re.sub(r"\s+", " ", page.read_text("utf-8"))
        )
    }
    assert [] == [term for term, _ in TERMS if term not in linked]


def test_what_people_search_for_is_there() -> None:
    words = {term for term, _ in TERMS}
    assert {
        "at least once",
        "background job",
        "dead-letter queue",
        "idempotent",
        "task queue",
        "visibility timeout",
    } <= words
