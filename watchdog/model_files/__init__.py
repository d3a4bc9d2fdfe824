"""What lies in a model's folder, told apart without reading any weights. Nothing here raises."""

from watchdog.model_files.asking import Asked, asked_of
from watchdog.model_files.fingerprint import Fingerprint, differences, only_grew
from watchdog.model_files.reading import Reader

__all__ = ["Asked", "Fingerprint", "Reader", "asked_of", "differences", "only_grew"]
