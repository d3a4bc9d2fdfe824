"""Which driver runs which CUDA: the rule over the table, and what settings add to it."""

from __future__ import annotations

import pytest

from watchdog.nvidia.floors import Fit, judge, numbers


def test_below_the_floor_of_the_family_does_not_fit() -> None:
    """FACT: the sentence names what the driver supports, what is wanted and what that needs."""
    assert judge("550.54.14", "13.0") == Fit(
        fits=False,
        words="driver 550.54.14 supports CUDA 12.4; the engine's torch wants CUDA 13.0, which "
        "needs driver 580.65.06 or newer",
    )


@pytest.mark.parametrize(
    ("driver", "wanted", "fits"),
    [
        ("580.65.06", "13.0", True),
        ("580.65.05", "13.0", False),
        ("580.65.06", "13.3", True),
        ("580.9", "13.0", False),
        ("580.159.04", "13.0", True),
        ("525.60.13", "12.9", True),
        ("525.60.12", "12.0", False),
        ("450.80.02", "11.8", True),
        ("418.87", "11.0", False),
        ("610.43.02", "11.8", True),
    ],
)
def test_the_family_decides(driver: str, wanted: str, fits: bool) -> None:  # noqa: FBT001
    """FACT: the floor of a family holds for all its toolkits; versions compare as numbers."""
    assert judge(driver, wanted).fits is fits


def test_between_the_floor_and_its_own_driver_it_fits_with_a_remark() -> None:
    """FACT: a newer minor runs on the family's floor, with less; from its own driver on, fully."""
    limited = judge("580.65.06", "13.1")
    assert limited.fits is True
    assert limited.words == (
        "driver 580.65.06 supports CUDA 13.0; the engine's torch wants CUDA 13.1, which runs on "
        "it with limited features and in full from driver 590.44.01 on"
    )
    assert judge("590.44.01", "13.1") == Fit(fits=True)


@pytest.mark.parametrize(
    ("driver", "wanted"),
    [("580.65.06", "14.0"), ("", "13.0"), ("580.65.06", ""), ("unknown", "13.0"), ("1.2", "x.y")],
)
def test_what_is_not_known_is_not_judged(driver: str, wanted: str) -> None:
    """FACT: an unknown family, driver or wish is neither a fit nor a misfit."""
    assert judge(driver, wanted) == Fit(fits=None)


def test_settings_add_toolkits_and_families() -> None:
    """FACT: a row of the settings counts as one of the table, for its family too if that is new."""
    assert "620.10" in judge("610.43.02", "13.5", {"13.5": "620.10"}).words
    assert judge("650.1", "14.1", {"14.0": "651.2", "14.1": "655.3"}).fits is False
    assert judge("651.2", "14.1", {"14.0": "651.2", "14.1": "655.3"}).fits is True
    assert judge("580.65.06", "13.0", {"13": "590.1"}).fits is False


def test_a_driver_older_than_the_table_is_said_to_be() -> None:
    """FACT: no number is invented for a driver below the first toolkit of the table."""
    assert judge("440.33", "12.8").words.startswith("driver 440.33 supports no CUDA from 11.8 on;")


@pytest.mark.parametrize("text", ["", "a.b", "5..8", "580.-1", "²"])
def test_a_version_that_is_none_has_no_numbers(text: str) -> None:
    """FACT: only digits between single dots are a version."""
    assert numbers(text) == ()
