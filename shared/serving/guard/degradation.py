"""What an operator may allow when too many wait: shorter answers, or a smaller model's. Better than none at all."""

from dataclasses import replace

from shared.inference.sampling import SamplingParams
from shared.serving.guard.admission import Admission
from shared.serving.models.version import Version
from shared.serving.models.versions import Versions

SHORT_TOKENS = 128  # of an answer, when answers are to be short
SMALLER = "smaller"  # the smaller model's version


def overloaded(admission: Admission) -> bool:
    """Half of the queue is taken: from here on what each request gets is paid for by those who wait."""
    return admission.num_waiting > 0 and 2 * admission.num_waiting >= admission.max_waiting


def shortened(params: SamplingParams) -> SamplingParams:
    """The same with an answer of at most SHORT_TOKENS."""
    return replace(params, max_tokens=min(params.max_tokens, SHORT_TOKENS))


def smaller_than(version: Version, versions: Versions) -> Version | None:
    """The smaller model, if it can answer and takes as long a prompt: which this one will have isn't known yet."""
    for other in versions.list():
        mine, its = version.engine.limits, other.engine.limits
        if other.name != SMALLER or other is version or other.state != "ready" or mine is None or its is None:
            continue
        if other.engine.state == "failed":
            return None
        return other if its.max_model_len >= mine.max_model_len else None
    return None
