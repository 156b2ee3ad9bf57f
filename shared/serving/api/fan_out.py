"""The outputs of all prompts of one request, as one stream of them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from shared.inference.outputs import RequestOutput
from shared.inference.sampling import SamplingParams
from shared.serving.concurrency import in_batches
from shared.serving.errors import ApiError
from shared.serving.guard.call import Call
from shared.serving.guard.service import Service

RETRY_S = 1.0


async def all_outputs(
    service: Service,
    call: Call,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
) -> AsyncGenerator[list[RequestOutput], None]:
    """Begin to answer prompts that were admitted; returns once the first has its place, and raises what
    service.outputs raises.

    The j-th of the n answers to prompt i has the index i * n + j. Outputs that are there at once come in one list.
    """
    first = await service.outputs(call, prompts[0], params[0])
    if len(prompts) == 1:
        return in_batches(first)
    return _merged(service, call, first, prompts, params)


async def _merged(
    service: Service,
    call: Call,
    first: AsyncIterator[RequestOutput],
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
) -> AsyncGenerator[list[RequestOutput], None]:
    limits, n = call.version.engine.limits, params[0].n
    assert limits is not None
    turns = asyncio.Semaphore(max(limits.max_num_seqs // n, 1))
    alone = asyncio.Lock()  # one of them waits at a time: who comes later is not to wait behind the whole list
    queue: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()

    async def run(i: int) -> None:
        try:
            async with turns:
                if i == 0:
                    outputs = first
                else:
                    async with alone:
                        outputs = await _patiently(service, call, prompts[i], params[i])
                async for output in outputs:
                    queue.put_nowait(replace(output, index=i * n + output.index))
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(run(i)) for i in range(len(prompts))]
    unfinished = n * len(prompts)
    try:
        while unfinished:
            items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            outputs = [item for item in items if isinstance(item, RequestOutput)]
            yield outputs
            for error in items:
                if isinstance(error, Exception):
                    raise error
            unfinished -= sum(output.finish_reason is not None for output in outputs)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _patiently(
    service: Service, call: Call, prompt_ids: list[int], params: SamplingParams
) -> AsyncIterator[RequestOutput]:
    """The outputs of one more prompt of a call that has begun: too late to refuse it because others wait as well."""
    while True:
        try:
            return await service.outputs(call, prompt_ids, params)
        except ApiError as refusal:  # the deadline's is another one
            if refusal.status != 429:
                raise
        await asyncio.sleep(RETRY_S)
