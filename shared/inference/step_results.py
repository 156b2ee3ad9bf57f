"""What comes of a step: a token for each sequence that is to get one, or the error of those that fail."""

from shared.inference.model_runner import ModelRunner
from shared.inference.sampler import Sampled, rows_to_sample, sample_rows
from shared.inference.sequence import Sequence
from shared.inference.step import Step

Results = dict[Sequence, Sampled | Exception]


def compute(step: Step, runner: ModelRunner) -> Results:
    """Run the model and draw tokens. If that fails, each sequence by itself, so that only those fail that must.

    A step can be computed again: it writes the same numbers into the same slots. Copies can't: where one was taken
    from, another's numbers may be by now. So they are made once, here, and taken out of the step.
    """
    try:
        runner.pool.copy_blocks(step.copies)
        step.copies.clear()
        return dict(sample_rows(runner.run(step), rows_to_sample(step)))
    except Exception as error:
        if len(step.scheduled) == 1:
            return {step.scheduled[0][0]: error}
    results: Results = {}
    for sequence, n in step.scheduled:
        results |= compute(Step([(sequence, n)], step.copies), runner)
    return results
