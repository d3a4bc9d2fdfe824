"""What makes the default rules about an engine's model fire and clear."""

from __future__ import annotations

from tests.support.core import metrics, reading
from tests.support.rule_stories import Tale, times
from watchdog.core.model import Reading, Seconds, Value

_OTHER = "serves other, was tiny"


def _model(at: Seconds, **values: Value) -> Reading:
    """What ``engine_model`` reads of an engine that serves what it should, but for ``values``."""
    usual: dict[str, Value] = {"known": True, "files_changed": "", "served_names": "tiny"}
    usual |= {"changed": "", "refused": False, "max_model_len": 4096}
    return reading("engine_model", at, *tuple((usual | values).items()))


MODEL_TALES = (
    Tale(
        "model-changed",
        fires=(_model(1.0), metrics(1.5, 1.0), _model(2.0, changed=_OTHER, refused=True)),
        clears=(_model(32.0),),
        blind=(("engine_model.refused",),),
    ),
    Tale(
        "model-replaced",
        fires=(_model(1.0), _model(2.0, changed=_OTHER)),
        clears=(_model(32.0),),
        blind=(("engine_model.changed",),),
        silent=(("engine_model.refused",),),
    ),
    Tale(
        "model-files-changed",
        fires=tuple(_model(at, files_changed="config.json differs") for at in times(1, 61, 30)),
        clears=tuple(_model(at) for at in times(91, 151, 30)),
        blind=(("engine_model.files_changed",),),
    ),
)
"""Of the rules about models."""
