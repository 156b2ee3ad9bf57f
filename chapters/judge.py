"""What the chapter tests judge with: expectations that say what a good teacher would say."""

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

NO_RESULT = "does the function return its result? without a return it gives None"


def no_result(because: str) -> str:
    """None may be a missing return, or what a wrong answer found: say both."""
    return f"{NO_RESULT}. If it does: {because}"


class Rejected(AssertionError):
    """An answer that is wrong. `detail` says what was seen, `because` the likely cause."""

    def __init__(self, detail: str, because: str):
        super().__init__("\n".join(filter(None, (detail, because))))
        self.detail, self.because = detail, because


def exercise(exercise_id: str) -> pytest.MarkDecorator:
    """Marks a test as one of an exercise's: `@exercise("5.1")`."""
    return pytest.mark.exercise(exercise_id)


def expect(condition: Any, because: str) -> None:
    """Reject unless the condition holds."""
    if not condition:
        raise Rejected("", because)


def expect_parts(got: Any, names: tuple[str, ...], because: str) -> None:
    """Reject unless `got` is a tuple (or list) with one part for each name."""
    if got is None:
        raise Rejected(f"expected {len(names)} results, got None", NO_RESULT)
    if not isinstance(got, list | tuple):
        raise Rejected(f"expected ({', '.join(names)}), got a single {type(got).__name__}", because)
    if len(got) != len(names):
        raise Rejected(f"expected ({', '.join(names)}), got {len(got)} results", because)


def expect_equal(got: Any, want: Any, because: str) -> None:
    """Reject unless `got` equals `want` exactly (numbers, strings, lists, shapes, arrays)."""
    if got is None and want is not None:
        raise Rejected(f"expected {short(want)}, got None", no_result(because))
    if is_array(got) or is_array(want):
        expect_close(got, want, because, rtol=0, atol=0)
    elif isinstance(got, list | tuple) and isinstance(want, list | tuple):
        for index, (g, w) in enumerate(zip(got, want, strict=False)):
            if not plainly_equal(g, w):
                wanted, found = unlike(w, g)
                raise Rejected(f"expected {wanted} at [{index}], got {found}", because)
        if len(got) != len(want):
            raise Rejected(f"expected {len(want)} items, got {len(got)}: {short(got)}", because)
    elif not plainly_equal(got, want):
        wanted, found = unlike(want, got)
        raise Rejected(f"expected {wanted}, got {found}", because)


def expect_close(got: Any, want: Any, because: str, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Reject unless `got` is within atol + rtol * |want| of `want`, everywhere. Names the first wrong place."""
    if got is None:
        raise Rejected("expected numbers, got None", no_result(because))
    try:
        a, b = to_array(got), to_array(want)
    except (TypeError, ValueError) as error:
        raise Rejected(f"expected numbers, got {type(got).__name__} {short(got)} ({error})", because) from None
    if a.shape != b.shape:
        raise Rejected(f"expected shape {b.shape}, got {a.shape}", because)
    if a.dtype.kind not in "biufc":
        raise Rejected(f"expected numbers, got {short(got)}", because)
    with np.errstate(invalid="ignore"):
        wrong = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f" at [{', '.join(map(str, index))}]" if index else ""
        g, w = a[index].item(), b[index].item()
        ratio = ""
        if all(type(v) in (int, float) and v and np.isfinite(v) for v in (g, w)) and f"{g / w:.3g}" != "1":
            ratio = f" ({g / w:.3g} times)"
        count = f"; {int(wrong.sum())} of {wrong.size} values are wrong" if wrong.size > 1 else ""
        wanted, found = numbers(w, g)
        raise Rejected(f"expected {wanted}{place}, got {found}{ratio}{count}", because)


@contextmanager
def expect_raises(kind: type[Exception], because: str, match: str | None = None) -> Iterator[None]:
    """Reject unless the block raises `kind` (and, with `match`, a message that contains it, whatever the case)."""
    from chapters import Todo

    try:
        yield
    except (Todo, Rejected):
        raise
    except kind as error:
        if match is not None and match.lower() not in str(error).lower():
            raise Rejected(
                f"expected {kind.__name__} with a message that contains {match!r}, got {str(error)!r}", because
            ) from error
    except Exception as error:
        raise Rejected(f"expected {kind.__name__}, got {type(error).__name__}: {error}", because) from error
    else:
        raise Rejected(f"expected {kind.__name__}, and nothing was raised", because)


@contextmanager
def crash_means(because: str, *kinds: type[Exception]) -> Iterator[None]:
    """Reject with the likely cause when the block raises one of `kinds`. None named: anything but a slip of the pen (a
    name that isn't there, arguments that a call doesn't take), whose own message says more."""
    from chapters import Todo

    try:
        yield
    except (Todo, Rejected):
        raise
    except Exception as error:
        slip = (
            isinstance(error, NameError | AttributeError) or isinstance(error, TypeError) and "argument" in str(error)
        )
        if not isinstance(error, kinds) if kinds else slip:
            raise
        rejected = Rejected(f"{type(error).__name__}: {error}", because)
        raise rejected.with_traceback(error.__traceback__) from error


def is_array(value: Any) -> bool:
    """Whether it is of NumPy or torch, without importing torch."""
    return isinstance(value, np.ndarray) or hasattr(value, "detach")


def to_array(value: Any) -> np.ndarray:
    """Numbers of NumPy, torch, or lists of either, as an array; bf16 and fp16 as float32, which NumPy can hold."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value
        return value.numpy()
    if isinstance(value, list | tuple) and any(hasattr(item, "detach") for item in value):
        return np.array([to_array(item) for item in value])
    return np.asarray(value)


def plainly_equal(got: Any, want: Any) -> bool:
    """Equality that tells True from 1 and a list from a tuple, and looks at every element of an array."""
    if is_array(got) or is_array(want):
        a, b = to_array(got), to_array(want)
        return a.shape == b.shape and bool((a == b).all())
    return (
        type(got) is type(want)
        and got == want
        or got == want
        and not isinstance(got, bool)
        and not isinstance(want, bool)
    )


def numbers(want: Any, got: Any) -> tuple[str, str]:
    """Both as text, with as many digits as it takes to tell them apart."""
    if not (isinstance(want, float) and isinstance(got, float)):
        wanted, found = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in (want, got))
        return wanted, found
    want, got = want + 0.0, got + 0.0  # -0.0 would be shown as "-0"
    digits = next((d for d in (6, 9, 12) if f"{want:.{d}g}" != f"{got:.{d}g}"), 17)
    return f"{want:.{digits}g}", f"{got:.{digits}g}"


def unlike(want: Any, got: Any) -> tuple[str, str]:
    """Both as text; escaped where they would look the same, as an "á" of one character and of two does."""
    a, b = short(want), short(got)
    return (a, b) if unicodedata.normalize("NFC", a) != unicodedata.normalize("NFC", b) else (ascii(want), ascii(got))


def short(value: Any) -> str:
    """A value for a message: its repr, cut where it is longer than a reader wants."""
    text = repr(value)
    return text if len(text) <= 200 else text[:150] + f" … ({len(text)} characters)"
