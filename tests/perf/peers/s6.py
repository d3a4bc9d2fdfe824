"""s6: a scan folder; tuned with a clean-up script, readiness and a limit of deaths."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.perf.peers.processes import called, spawned
from tests.perf.peers.subject import Kept, Purpose, Subject, Trial, Worker

_READY = "exec s6-notifyoncheck -d -s 10 -w 50 -n 100 {command}"
_CHECK = "#!/bin/sh\nexec curl --silent --fail --max-time 3 {url} >/dev/null\n"
_FINISH = """\
#!/bin/sh
read pgid < pgid && kill -KILL "-$pgid" 2>/dev/null
{last}
"""
_LIMIT = "exec s6-permafailon 60 4 1-255 true"


def script(path: Path, text: str) -> None:
    """Write a program."""
    path.write_text(text)
    path.chmod(0o755)


def _service(worker: Worker, trial: Trial, *, tuned: bool) -> Path:
    folder = trial.folder / "scan" / worker.name
    folder.mkdir(parents=True)
    command = " ".join(worker.command)
    if not tuned:
        script(folder / "run", f"#!/bin/sh\nexec {command}\n")
        return folder
    (folder / "data").mkdir()
    script(folder / "data" / "check", _CHECK.format(url=worker.url))
    ready = _READY.format(command=command)
    script(folder / "run", f"#!/bin/sh\necho $$ > pgid\n{ready}\n")
    last = "exit 0" if trial.purpose is Purpose.CRASH else _LIMIT
    script(folder / "finish", _FINISH.format(last=last))
    (folder / "notification-fd").write_text("3\n")
    (folder / "timeout-kill").write_text("5000\n")
    return folder


@contextlib.contextmanager
def _keep(trial: Trial, *, tuned: bool) -> Iterator[Kept]:
    folders = [_service(worker, trial, tuned=tuned) for worker in trial.workers]
    wait = "-wD" if tuned else "-wd"

    def stop() -> bool:
        return not called(["s6-svc", wait, "-T", "15000", "-d", str(folders[0])], trial.folder)

    with spawned(["s6-svscan", str(trial.folder / "scan")], trial.folder) as root:
        yield Kept(root, stop)


SUBJECTS = (
    Subject(
        "s6",
        "default",
        "`run` only",
        partial(_keep, tuned=False),
        ("s6-svscan:s6",),
        settle=1.2,
    ),
    Subject(
        "s6",
        "tuned",
        "`finish` kills the stored process group, s6-permafailon 60 4 1-255 (not for crash), "
        "timeout-kill 5000, s6-notifyoncheck",
        partial(_keep, tuned=True),
        ("s6-svscan:s6", "s6-notifyoncheck:s6", "s6-permafailon:s6", "curl:curl"),
        settle=1.2,
    ),
)
