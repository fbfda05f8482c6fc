"""Damaged store files: the broker refuses them, ends, reports the damage, or is not affected.

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
    """Neither a lost job, nor an altered value, nor an error other than a `StoreError`.

    Except that a log that was cut looks like one that was never longer: see
    docs/lab/reliability.rst.
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
