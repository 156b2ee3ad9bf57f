"""The README's chapter map: what a reader writes in each chapter and what it becomes, and, from the notebooks, when."""

# chapter -> what the reader writes, and what it is in the finished stack
MAP: dict[int, tuple[str, str]] = {
    0: ("the naive loop, a server of thirty lines, the load test's summary", "the measuring tools"),
    1: ("forward, backward, losses, SGD, Adam, the schedule", "the digit reader and the learning-rate schedule"),
    2: ("the reader, cleaners, a guard, quality filters, the split", "the data pipeline's first half"),
    3: ("shingles, MinHash, LSH, SimHash", "near dedup, for files larger than memory"),
    4: (
        "byte-level BPE, an LRU cache, length buckets, padding and mask",
        "the tokenizer before and behind every answer",
    ),
    5: ("RMSNorm, rotary embedding, grouped-query attention, SwiGLU, the block, the model", "the model that is served"),
    6: (
        "AdamW, windows, clipping, accumulation, mixed precision, exact resume, data parallel",
        "the trainer, and a model of the book's own",
    ),
    7: ("perplexity, bits per byte, the regression gate, bad cases", "the gate before a new version"),
    8: (
        "safetensors, GGUF, quantisation, calibration, the int8 path, training for it",
        "loading without a second copy, and the int8 server",
    ),
    9: ("sampling, the cached loop, the memory formula and the budget, two diagnoses", "how the next token is drawn"),
    10: (
        "fragmentation, blocks, tables, sharing, prefix cache, eviction, paged attention",
        "the server's memory, and its prefix cache",
    ),
    11: ("static batches, the queue, the window, back-pressure, deadlines", "two rows to beat, on the scoreboard"),
    12: ("continuous batching, chunked prefill, preemption, n answers, speculation", "the engine"),
    13: (
        "counters, histograms and quantiles, request ids, logs off the path, traces, pauses, cost, alerts",
        "`/metrics`, the logs and the dashboard",
    ),
    14: (
        "rate limits, bounded and fair admission, deadlines, keys, drain, recovery after a crash, versions, routing",
        "the service that callers see",
    ),
}
