"""What files say of NVIDIA's driver, and what engines want of it. Nothing is run, no device opened.

Every function takes a ``root``: where the file system begins. Tests give it a tree of files,
whose links are relative: an absolute one leads out of it.
"""

from watchdog.nvidia.engine_cuda import wanted
from watchdog.nvidia.fit import obstacle

__all__ = ["obstacle", "wanted"]
