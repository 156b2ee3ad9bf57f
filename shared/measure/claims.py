"""What people say about AI systems, and what was measured: each claim gets one line, with a verdict, in a notebook."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MIME = "application/vnd.book.claim+json"

CLAIMS = {
    1: "An LRU token cache saves 60% of the tokenising time when texts repeat",
    2: "Length buckets win back about 30% of the work that padding wastes",
    3: "7B parameters are 28 GB in fp32, 14 GB in fp16 and 7 GB in int8",
    4: "Loading weights without freeing the temporaries doubles peak memory; mmap avoids it",
    5: "Processes that mmap the same weights share their pages",
    6: "The KV cache of a 7B model takes 8.6 GB at 2048 tokens, batch 8, fp16",
    7: "A KV cache makes generation several to tens of times faster",
    8: "A 10 ms collecting window takes utilisation from 20% to 70% at 50 requests/s",
    9: "Near saturation a 20 ms window has a better P99 than a 1 ms window",
    10: "A collecting window slows a lightly loaded service down",
    11: "One 2000-token request among eight short ones makes all of them wait",
    12: "A window that shrinks as the queue grows does better than a fixed one",
    13: "A single record can hold a regular expression up for 3 s",
    14: "Padding without a mask changes the answer",
    15: "Feeding the whole sequence to a warm KV cache garbles the output",
    16: "Exact dedup removes 30-35% of a raw corpus, near dedup at 0.85 another 10%, and 0.7 removes good text",
    17: "A random split leaks from the training set into the test set",
    18: "NumPy is 100 times slower than torch on an MLP",
    19: "A learning rate of 0.1 explodes; 1e-3 with 10% warm-up is safe",
    20: "A few garbage samples keep the loss from falling",
    21: "int8 halves memory; a classifier loses 0.3 points, a generator degrades visibly",
    22: "Too many concurrent requests run out of KV memory; the budget formula predicts how many",
    23: "Contiguous allocation fragments until a request that would fit can't be placed; pages don't",
    24: "Most of the latency under load is queueing, not computing",
    25: "1000 requests from one caller take down an unguarded service, and not a guarded one",
    26: "Synchronous logging to disk causes jitter",
    27: "Garbage collection causes pauses",
    28: "Serialising a large result as JSON can cost more than computing it; MessagePack doesn't",
    29: "Temperature changes the speed of sampling",
    30: "A cached system prompt is not computed twice",
    31: "A cache that is not invalidated when the model changes mixes two versions",
    32: "Warm-up removes the slow first requests",
    33: "A timeout of 2 to 3 times P99 cuts no normal request off",
    34: "Continuous batching beats the collecting window by much on mixed lengths",
    35: "Threads serve a compute engine as well as processes do when the computing releases the GIL",
}


def claim(number: int, measured: str, verdict: str) -> None:
    """Say what was measured for one claim, on this machine: printed, and in a notebook kept where `collect` finds it.

    measured: what was seen, with its numbers. verdict: "holds", "does not hold", or "holds when …".
    Raises ValueError for a number, a measurement or a verdict that isn't one.

    >>> claim(18, measured="NumPy 0.66 of torch's time per epoch", verdict="does not hold")
    Claim 18: NumPy is 100 times slower than torch on an MLP
    measured: NumPy 0.66 of torch's time per epoch
    verdict:  does not hold
    """
    _check(number, measured, verdict)
    text = f"Claim {number}: {CLAIMS[number]}\nmeasured: {measured}\nverdict:  {verdict}"
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import display

        payload = {"number": number, "claim": CLAIMS[number], "measured": measured, "verdict": verdict}
        display({"text/plain": text, MIME: payload}, raw=True)
    else:
        print(text)


def collect(notebooks: Iterable[Path]) -> list[dict[str, Any]]:
    """All claims that executed notebooks hold, by number: [{"number", "claim", "measured", "verdict", "chapter"}, …].

    `chapter` is the name of the notebook's folder. The claim's text is today's, whatever the notebook printed.
    Raises ValueError, with the notebook and the cell, for a file that isn't a notebook or a claim that isn't valid.
    """
    found = []
    for path in notebooks:
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: can't be read as a notebook: {error}") from None
        for position, cell in enumerate(cells, 1):
            for output in cell.get("outputs", []):
                if (payload := output.get("data", {}).get(MIME)) is None:
                    continue
                try:
                    number, measured, verdict = (payload[name] for name in ("number", "measured", "verdict"))
                    _check(number, measured, verdict)
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"{path}: cell {position}: not a valid claim: {error}") from None
                found.append({
                    "number": number,
                    "claim": CLAIMS[number],
                    "measured": measured,
                    "verdict": verdict,
                    "chapter": path.resolve().parent.name,
                })  # fmt: skip
    return sorted(found, key=lambda row: row["number"])


def _check(number: int, measured: str, verdict: str) -> None:
    if type(number) is not int or number not in CLAIMS:
        raise ValueError(f"number must be that of a claim, 1 to {len(CLAIMS)}, not {number!r}")
    if not isinstance(measured, str) or not measured.strip():
        raise ValueError(f"measured must say what was measured, not {measured!r}")
    conditional = isinstance(verdict, str) and verdict.startswith("holds when ") and verdict != "holds when "
    if verdict not in ("holds", "does not hold") and not conditional:
        raise ValueError(f'verdict must be "holds", "does not hold" or "holds when …", not {verdict!r}')
