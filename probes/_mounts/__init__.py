"""Mounts: which are used, what is left of them, which do not answer, and who fills them."""

from probes._mounts.deleted import Deleted, deleted
from probes._mounts.eater import Eater, Search
from probes._mounts.latency import Latency
from probes._mounts.looks import Answers, Look, Looks
from probes._mounts.mountinfo import TMPFS, Mount, Table, mount_of, mounts
from probes._mounts.space import Space, space
from probes._mounts.survey import SHARED_MEMORY, STATE, FileSystem, Site, Survey, Surveyor, Use

__all__ = [
    "SHARED_MEMORY",
    "STATE",
    "TMPFS",
    "Answers",
    "Deleted",
    "Eater",
    "FileSystem",
    "Latency",
    "Look",
    "Looks",
    "Mount",
    "Search",
    "Site",
    "Space",
    "Survey",
    "Surveyor",
    "Table",
    "Use",
    "deleted",
    "mount_of",
    "mounts",
    "space",
]
