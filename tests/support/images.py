"""Does what a Dockerfile says without a container engine: its steps run on a copy of this machine.

An overlay over this machine's root stands for the base image. What the steps of the last stage
write is the layer, a tar file, as a container engine stores it. Needs the rights of root.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.namespaces import PYTHON
from tests.support.simulated import ROOT

_PLACE = "/mnt/root"
"""Where the image is mounted, in the namespaces of its own build and run."""
_MOUNT = (
    "mount -t tmpfs image /mnt && mkdir /mnt/upper /mnt/work /mnt/root",
    "{fill}",
    f"mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work image {_PLACE}",
    f"mount -t tmpfs -o mode=1777 tmp {_PLACE}/tmp",
    f"mount --rbind /dev {_PLACE}/dev && mount --rbind /proc {_PLACE}/proc",
)
_VARIABLES = {
    "HOME": "/root",
    "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: its word in capitals, and what stands behind it."""

    word: str
    text: str

    def words(self) -> list[str]:
        """The exec form, a JSON array; raises ValueError for any other."""
        found = json.loads(self.text[self.text.index("[") :])
        assert all(isinstance(word, str) for word in found)
        return list(found)


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next. ``base`` is what it says, ``name`` may be empty."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def all(self, word: str) -> list[Step]:
        """Its instructions of one kind."""
        return [step for step in self.steps if step.word == word]

    def last(self, word: str) -> Step:
        """The one that holds; fails the test when there is none."""
        return self.all(word)[-1]

    def environment(self) -> dict[str, str]:
        """What its ENV instructions set."""
        words = [word for step in self.all("ENV") for word in shlex.split(step.text)]
        return {name: value for name, _, value in (word.partition("=") for word in words)}


def stages(file: Path) -> list[Stage]:
    """The stages of a Dockerfile. What stands before the first FROM is left out."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    found: list[Stage] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name))
        elif word and found:
            found[-1].steps.append(Step(word, " ".join(rest.split())))
    return found


def sources(step: Step) -> tuple[list[str], str, str]:
    """Of a COPY: what is copied, where to, and from which stage, "" for the tree."""
    words = step.text.split()
    stage = words.pop(0).partition("=")[2] if words[0].startswith("--from=") else ""
    return words[:-1], words[-1], stage


def build(stage: Stage, layer: Path, others: dict[str, Path]) -> None:
    """Do the steps of ``stage``; what they wrote is ``layer``. ``others`` are layers by stage."""
    lines = ["set -eu", *(line.format(fill="true") for line in _MOUNT), *_steps(stage, others)]
    lines += [f"rm -rf /mnt/upper{ROOT}", f"tar -cf {layer} -C /mnt/upper ."]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _steps(stage: Stage, others: dict[str, Path]) -> Iterator[str]:
    where = "/"
    for step in stage.steps:
        match step.word:
            case "WORKDIR":
                where = step.text
                yield f"mkdir -p {_PLACE}{where}"
            case "COPY":
                yield from _copied(step, where, others)
            case "RUN":
                command = f"cd {where} && {step.text}"
                around = [f"{name}={value}" for name, value in _VARIABLES.items()]
                yield shlex.join(["chroot", _PLACE, "env", *around, "sh", "-euc", command])
            case _:
                pass


def _copied(step: Step, where: str, others: dict[str, Path]) -> Iterator[str]:
    """As COPY does it: of a directory its content, and none of what is ignored."""
    names, target, stage = sources(step)
    goal = f"{_PLACE}{target if target.startswith('/') else f'{where}/{target}'}"
    yield f"mkdir -p {goal if target.endswith('/') else Path(goal).parent}"
    for name in names:
        if stage:
            inside = name.strip("/")
            depth = inside.count("/") + 1
            yield f"tar -xf {others[stage]} -C {goal} --strip-components={depth + 1} ./{inside}"
        elif (ROOT / name).is_dir():
            yield f"tar -cC {ROOT / name} --exclude=__pycache__ . | tar -xC {goal}"
        else:
            yield f"cp {ROOT / name} {goal}"


def mounted(layer: Path) -> list[str]:
    """Lines for ``boxed``: the image, with its layer, at the place where ``inside`` looks."""
    lines = [line.format(fill=f"tar -xf {layer} -C /mnt/upper") for line in _MOUNT]
    closed = [path for path in PYTHON.parents if not path.stat().st_mode & 0o001]
    return [*lines, *(f"chmod 755 {_PLACE}{path}" for path in closed)]


def inside(stage: Stage, command: Sequence[str]) -> list[str]:
    """A command in the image as a container engine starts it: user, directory, environment."""
    around = {**_VARIABLES, "PATH": "/usr/local/bin:/usr/bin:/bin", **stage.environment()}
    user, where = stage.last("USER").text, stage.last("WORKDIR").text
    words = [f"{name}={value}" for name, value in around.items()]
    script = f"cd {where} && exec {shlex.join(command)}"
    return ["chroot", f"--userspec={user}", _PLACE, "env", "-i", *words, "sh", "-c", script]
