"""What a caller is told who gets no answer, or not the whole of it: too many are here, it took too long, no engine."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from shared.serving.engines.engine import EngineFailed
from shared.serving.errors import ApiError, busy, server_error
from shared.serving.guard.admission import Admission, Busy
from shared.serving.guard.call import Call
from shared.serving.guard.deadline import DeadlinePassed

T = TypeVar("T")


def full(admission: Admission, call: Call) -> Busy | None:
    """What Admission.acquire would raise for this request now."""
    of_key = admission.waiting_by_key.get(call.caller, 0)
    bound = admission.max_waiting_per_key if call.key.max_waiting is None else call.key.max_waiting
    if admission.num_running < admission.max_running:
        return None
    if of_key < bound and (admission.num_waiting < admission.max_waiting or admission.can_push_out(call.caller)):
        return None
    return Busy(f"{admission.num_waiting} requests wait already", admission.retry_after())


def hopeless(admission: Admission, remaining_s: float) -> Busy | None:
    """For a request whose deadline comes before its turn and the time that it then takes: it would wait for nothing.

    Nothing is said of that before a first answer was measured.
    """
    expected = admission.expected_s()
    if not admission.measured or admission.num_running < admission.max_running or expected <= remaining_s:
        return None
    return Busy(f"an answer takes about {expected:.1f} s now, and this one is to take less", admission.retry_after())


def no_turn(call: Call) -> ApiError:
    """Its deadline came while it waited, for its turn or for the engine."""
    if call.version.engine.state == "restarting":
        message, code = f"The engine is away, and was not back within {call.timeout_s:g} s.", "engine_away"
    elif call.handed_over:  # it hangs, or is in a long step with others
        message, code = f"The engine did not come to it within {call.timeout_s:g} s.", "engine_away"
    else:
        message, code = f"The server is busy: its turn did not come within {call.timeout_s:g} s.", "overloaded"
    return server_error(message, code=code, status=503)


def too_late(call: Call) -> ApiError:
    """Its deadline came while it was computed."""
    message = f"The answer was not finished within its {call.timeout_s:g} s; ask for less, or allow it more."
    return ApiError(504, message, type="timeout_error", code="deadline_passed")


def engine_failed() -> ApiError:
    """There is no engine to answer. Why is for the operator alone: it may name files."""
    return server_error("The engine has failed; the server's log says how.", code="engine_failed", status=503)


async def unless_failed(call: Call, waiting: Coroutine[Any, Any, T]) -> T:
    """The result of `waiting`, or the ApiError that says why there is none: the call was ended from outside, or
    refused. A caller who leaves is CancelledError as ever."""
    task = asyncio.current_task()
    assert task is not None
    call.waiting.add(task)
    try:
        if call.failure is not None:
            raise call.failure
        return await waiting
    except asyncio.CancelledError:
        if call.failure is None or task.uncancel():
            raise  # the caller has left
        raise call.failure from None
    except Busy as error:
        if not call.handed_over:
            call.trace.queued = None
        raise busy(error, error.retry_after_s) from None
    except DeadlinePassed:
        raise no_turn(call) from None
    except EngineFailed:
        raise engine_failed() from None
    finally:
        waiting.close()
        call.waiting.discard(task)
