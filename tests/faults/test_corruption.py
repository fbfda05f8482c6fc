"""Damage in the files of a store is refused, ends the broker, is found, or changes nothing.

``python -m benchmarks.faults corruption`` tries more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.faults.corruption import DIAGNOSES, Store, is_cut

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("killed", "seeds"), [(False, range(16)), (True, range(16))])
def test_damage_never_causes_a_silent_wrong_answer(
    tmp_path: Path, killed: bool, seeds: range
) -> None:
    """An error other than a `StoreError`, a job that is gone, or another value, fails here.

    But a log that was cut off is taken for one that was never longer: the page "What was tried"
    says so.
    """
    store = Store(tmp_path, killed=killed, jobs=60)
    counted: Counter[str] = Counter()
    for seed in seeds:
        damage, (diagnosis, text) = store.damage(seed)
        assert diagnosis in DIAGNOSES or is_cut(damage), (
            f"seed {seed}: {damage}: {diagnosis}: {text}"
        )
        counted[diagnosis] += 1
    assert counted["refused"] > 0
