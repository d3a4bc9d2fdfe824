"""Which names a condition may use: the declared samples of its subject's kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from watchdog.contracts import ProbeSpec, SampleSpec
from watchdog.core.model import SubjectKind
from watchdog.core.views import IDENTITY
from watchdog.rules.own import OWN


class VocabularyError(Exception):
    """No sample of that name, or none that this rule may use. The message is one line."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A sample by its full name ``probe.sample``, whose it is, and the labels of its own."""

    name: str
    spec: SampleSpec
    subject: SubjectKind
    labels: tuple[str, ...]

    @property
    def type(self) -> type[bool | float | str]:
        """What a condition sees: every number is a float."""
        return self.spec.type if self.spec.type in {bool, str} else float

    def labelled(self, value: str) -> str:
        """The name in a view of one label value's sample; raises VocabularyError."""
        known = self.spec.label_values
        if known and value not in known:
            label = self.labels[0]
            raise VocabularyError(
                f"unknown {label} {value} of {self.name}{meant(value, known, always=True)}"
            )
        return f"{self.name}.{value}"


class Vocabulary:
    """All samples that probes and the core declare."""

    def __init__(self, specs: Mapping[str, ProbeSpec]) -> None:
        self._samples = {declared.name: declared for declared in _declared(specs)}
        self.roots = frozenset(name.partition(".")[0] for name in self._samples)

    def kinds(self) -> list[SubjectKind]:
        """The kinds of subjects that something is known of."""
        present = {declared.subject for declared in self._samples.values()}
        return [kind for kind in SubjectKind if kind in present]

    def find(self, name: str, kind: SubjectKind) -> Declared:
        """The sample ``name`` for a rule about ``kind``; raises VocabularyError."""
        found = self._samples.get(name)
        if found is None:
            raise VocabularyError(f"unknown sample {name}{meant(name, self.names(kind))}")
        if found.subject is not kind:
            words = f"{name} is a sample of {article(found.subject)}"
            raise VocabularyError(f"{words}, this rule is about {article(kind)}")
        return found

    def names(self, kind: SubjectKind) -> list[str]:
        """The names of all samples of a kind."""
        return [name for name, declared in self._samples.items() if declared.subject is kind]


def article(kind: SubjectKind) -> str:
    """``an engine``, ``a gpu``."""
    return f"an {kind.value}" if kind is SubjectKind.ENGINE else f"a {kind.value}"


def meant(name: str, known: Iterable[str], *, always: bool = False) -> str:
    """``, did you mean X?``; without a near one the known ones if ``always``, else ""."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, n=1)
    if near:
        return f", did you mean {near[0]}?"
    return f", expected one of {', '.join(listed)}" if always and listed else ""


def _declared(specs: Mapping[str, ProbeSpec]) -> Iterator[Declared]:
    for root, probe in specs.items():
        for spec in probe.samples:
            yield _one(root, spec, spec.subject or probe.subject_kind)
    for kind, parts in OWN.items():
        for root, samples in parts.items():
            yield from (_one(root, spec, kind) for spec in samples)


def _one(root: str, spec: SampleSpec, kind: SubjectKind) -> Declared:
    identity = IDENTITY.get(kind, frozenset())
    own = tuple(label for label in spec.labels if label not in identity)
    return Declared(f"{root}.{spec.name}", spec, kind, own)
