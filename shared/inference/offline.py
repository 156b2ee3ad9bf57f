"""Many prompts, and all their answers at the end: an engine's steps for a script, where nobody reads along."""

from collections.abc import Callable, Sequence
from typing import Protocol

from shared.inference.outputs import GenerationError, Outputs, RequestOutput, joined
from shared.inference.sampling import SamplingParams
from shared.measure.progress import progress_bar

Prompt = Sequence[int]


class Steps(Protocol):
    """What of an engine it takes to run requests that were added."""

    @property
    def has_unfinished(self) -> bool:
        """Whether a step has anything to do."""

    def step(self) -> Outputs:
        """One step's outputs, as LLMEngine.step returns them."""


def answer_all(
    engine: Steps,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    add: Callable[[str, Prompt, SamplingParams], bool],
    progress: bool = False,
) -> list[RequestOutput]:
    """Add the prompts as there are places for them, and step until the last answer has ended.

    params: one for each prompt. add: queues a request, or returns False while there is no place. Returns the answers in
    the prompts' order, each in one piece, params.n of each prompt. Raises GenerationError, with the prompt's number.
    """
    pieces: list[list[list[RequestOutput]]] = [[[] for _ in range(one.n)] for one in params]
    todo = 0
    with progress_bar("tokens", sum(one.max_tokens * one.n for one in params), progress) as tick:
        while todo < len(prompts) or engine.has_unfinished:
            while todo < len(prompts) and add(str(todo), prompts[todo], params[todo]):
                todo += 1
            for request_id, output in engine.step():
                if isinstance(output, GenerationError):
                    output.add_note(f"while answering prompts[{request_id}]")
                    raise output
                pieces[int(request_id)][output.index].append(output)
                tick()
    return [joined(answer) for answers in pieces for answer in answers]
