"""How this chapter's tests call an answer: what comes back is looked at before its numbers are."""

from collections.abc import Callable
from typing import Any

import numpy as np

from chapters.judge import NO_RESULT, expect


def call(function: Callable[..., Any], *arguments: Any, none: str = NO_RESULT) -> Any:
    """The function's result. Rejects None, and a change to an array that was handed in."""
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        got = function(*arguments)
    except IndexError as error:
        expect(
            "reduceat" not in str(error),
            because=f"{error}. A document without shingles has no start of its own, and at the end of the row its "
            "start lies beyond it: give reduceat the starts of the other documents only",
        )
        raise
    expect(got is not None, because=none)
    for argument, copy in zip(arguments, before, strict=True):
        expect(
            not isinstance(argument, np.ndarray) or np.array_equal(argument, copy),
            because="an array that the caller handed in was changed: x *= y and x[...] = y work in place, on the "
            "caller's own numbers, which are then wrong for whoever uses them next. Make a new array",
        )
    return got


def array(got: Any, shape: tuple[int, ...] | None, kind: type, because: str) -> np.ndarray:
    """The result as an array. Rejects another shape (None: any length), or another type of number."""
    expect(isinstance(got, np.ndarray), because=f"an array is wanted, not a {type(got).__name__}; {because}")
    right = got.ndim == 1 if shape is None else got.shape == shape
    expect(right, because=f"the result has the shape {list(got.shape)}; {because}")
    floats = " (uint64 and a signed integer together give float64 in NumPy, in which 64 bits have no room)"
    expect(
        got.dtype == kind,
        because=f"the result's numbers are {got.dtype}, and {np.dtype(kind)} is asked for"
        + (floats if got.dtype.kind == "f" else ""),
    )
    return got
