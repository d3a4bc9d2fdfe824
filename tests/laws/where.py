"""Which package the laws are judged over; run by name in a copy, see ``mutants``."""

from __future__ import annotations

import os
from pathlib import Path

from watchdog.core import policy


def test_the_copy_is_what_is_imported() -> None:
    """The core comes from the folder that ``LAWS_OVER`` names."""
    folder = Path(os.environ["LAWS_OVER"])
    assert Path(policy.__file__).is_relative_to(folder)
