"""A version's way from a folder to an engine that may serve: memory, text, engine, warm-up, and the regression gate."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from shared.serving.concurrency import in_thread
from shared.serving.models.promotion import Side, check_memory, warm_up
from shared.serving.models.text_model import TextModel
from shared.serving.models.version import Version, reason

logger = logging.getLogger(__name__)

Gate = Callable[[Side, Side], Awaitable[dict[str, Any]]]
LoadText = Callable[[Path, str], TextModel]


async def bring_up(version: Version, others: Sequence[Version], load_text: LoadText) -> None:
    """Load a version and warm it up. others: those whose weights are in memory, which may share them.

    Raises what stands in the way: ApiError for want of memory, OSError and ValueError of its files, EngineFailed.
    """
    if loaded := {other.path: other.engine.limits.device for other in others if other.engine.limits is not None}:
        check_memory(version.path, loaded)
    version.text = await in_thread(lambda: load_text(version.path, version.model))
    await version.engine.start()
    version.state = "warming"
    version.warm_up = await warm_up(version.engine, version.text)


async def compare(version: Version, baseline: Version, gate: Gate) -> None:
    """Leave in version.gate what the gate says of it beside the one that serves; "reasons" not to let it serve, too.

    A gate that fails is such a reason: of its file, or of an engine that went away, nothing is known of the version.
    """
    if baseline.engine.state == "failed":  # when else should it be replaced?
        why = f"not compared: the engine of {baseline.name} has failed"
        version.gate = {"baseline": baseline.name, "cases": 0, "reasons": [], "left_out": [why]}
        return
    version.state = "checking"
    sides = [Side(v.name, v.engine, v.text, v.results) for v in (version, baseline) if v.text is not None]
    try:
        version.gate = await gate(*sides)
    except Exception as error:
        logger.warning("the regression gate of version %s failed: %s", version.name, reason(error))
        version.gate = {"baseline": baseline.name, "reasons": [f"the regression gate failed: {reason(error)}"]}
