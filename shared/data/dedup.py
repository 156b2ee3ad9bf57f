"""Remove the duplicates from a JSONL file, which may be larger than memory: python -m shared.data.dedup IN OUT

Three passes: sign every record (SHA-256 and signature; the text is let go of), compare what shares a band (texts are
read again, by their place in the file), write what is kept. Stopped by Ctrl-C, the same command goes on where it was.
"""

import signal

if __name__ == "__main__":  # Ctrl-C during the imports below then ends the process, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import codecs
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shared.data.dedup_job import Job, ShingleSets, sized_lines
from shared.data.duplicates import THRESHOLD, fingerprint, first_equal, likely
from shared.data.lsh import band_keys, bucket_pairs, check_threshold, choose_bands, join, roots, verify
from shared.data.minhash import BATCH_CHARS, NUM_PERM, check_num_perm, signatures
from shared.data.reader import GZIP, MAX_LINE_BYTES, check_compression, parse_record, printable
from shared.data.shingles import NGRAM, Array, check_ngram, jaccard
from shared.measure.command import run_command
from shared.measure.files import replacing
from shared.measure.outputs import check_output
from shared.measure.progress import progress_bar

MB = 1_000_000


@dataclass(frozen=True)
class Report:
    """What deduplicate did.  documents = kept + exact + near; bad lines are in neither.

    exact: removed since an earlier record has the same SHA-256.  near: removed since they belong, directly or through
    others, to a cluster of texts as similar as the threshold asks.  compared: pairs of which the texts were read.
    removed: a JSONL file that tells of every removed record its line, the line kept in its place, whether it was
    exact or near, and the true similarity of the two.
    """

    documents: int
    kept: int
    exact: int
    near: int
    bad: int
    compared: int
    bands: int
    rows: int
    seconds: float
    removed: Path

    def __str__(self) -> str:
        share = 100 / max(self.documents, 1)
        bad = f"\n  {self.bad:8} bad lines left out" if self.bad else ""
        return (
            f"{self.documents} records, {self.kept} kept ({self.kept * share:.1f}%), in {self.seconds:.1f} s\n"
            f"  {self.exact:8} removed as exact duplicates ({self.exact * share:.1f}%)\n"
            f"  {self.near:8} removed as near duplicates ({self.near * share:.1f}%); {self.compared} pairs compared, "
            f"{self.bands} bands of {self.rows}{bad}\nwhat was removed, and for which record: {self.removed}"
        )


def deduplicate(
    path_in: Path | str, path_out: Path | str, threshold: float = THRESHOLD, num_perm: int = NUM_PERM,
    ngram: int = NGRAM, skip_bad: bool = False, progress: bool = True,
) -> Report:  # fmt: skip
    """Copy the records of a JSONL file to path_out, line by line as they are, without duplicates of earlier ones.

    Memory: 48 + 4 * num_perm bytes a record, and a little for the work at hand.  Beside path_out stands a folder
    ("clean.jsonl.dedup") until the work is done; started again with the same arguments, it goes on from there.
    Neither output appears before it is complete.  A bad line raises ValueError, unless skip_bad: it is then left out.
    Raises ValueError for settings out of range (0 < threshold <= 1), for an input that is compressed or holds not one
    record, and for an output that can't be written; then nothing is left behind.
    """
    check_threshold(threshold)
    check_num_perm(num_perm)
    check_ngram(ngram)
    started = time.perf_counter()
    path_in, path_out = Path(path_in), Path(path_out)
    facts = path_in.stat()
    settings = {"input": str(path_in.resolve()), "bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns, "version": 1,
                "threshold": threshold, "num_perm": num_perm, "ngram": ngram, "skip_bad": skip_bad}  # fmt: skip
    bands, rows = choose_bands(threshold, num_perm)
    with path_in.open("rb") as file:
        check_compression(start := file.read(8), path_in)
        if start.startswith(GZIP):
            raise ValueError(f"{path_in}: is compressed, and texts have to be read again by their place; unpack it")
        removed = path_out.with_name(path_out.name.removesuffix(".jsonl") + ".removed.jsonl")
        check_output(path_out, {"the input": path_in})
        check_output(removed, {"the input": path_in})
        job = Job(path_out.with_name(path_out.name + ".dedup"), settings, num_perm)
        if not job.state["signed"]:
            with progress_bar("signing, MB", facts.st_size // MB, enabled=progress) as step:
                try:
                    sign(job, file, path_in, settings, step)
                except ValueError:  # a bad line: once it is mended this is another input, and nothing here is of use
                    job.close()
                    raise
        documents = job.documents()
        shingles_of = ShingleSets(file, documents["offset"], ngram)
        first = first_equal(documents["digest"])
        with progress_bar("comparing, bands", bands - job.state["bands"], enabled=progress) as step:
            parent = compare(job, documents["signature"], first, shingles_of, threshold, bands, rows, step)
        kept = roots(parent, np.arange(len(parent)))
        with progress_bar("writing, thousands", len(kept) // 1000, enabled=progress) as step:
            write(documents, kept, first, shingles_of, path_out, removed, step)
    n, exact = len(kept), int((first != np.arange(len(kept))).sum())
    n_kept = int((kept == np.arange(n)).sum())
    job.close()
    return Report(n, n_kept, exact, n - n_kept - exact, job.state["bad"], job.state["compared"], bands, rows,
                  time.perf_counter() - started, removed)  # fmt: skip


def sign(job: Job, file: Any, path: Path, settings: dict[str, Any], step: Callable[[], None]) -> None:
    """The first pass, from where the job stands: every record's place, SHA-256 and signature, saved batch by batch."""
    state = job.state
    offset, line, bad = state["offset"], state["line"], state["bad"]
    texts: list[str] = []
    places: list[tuple[int, int]] = []

    def save() -> None:
        documents = np.empty(len(texts), job.type)
        documents["offset"], documents["line"] = np.array(places, np.uint64).reshape(-1, 2).T
        documents["digest"] = np.frombuffer(b"".join(map(fingerprint, texts)), "<u8").reshape(-1, 4)
        documents["signature"] = signatures(texts, settings["num_perm"], settings["ngram"])
        job.append(documents)
        state.update(offset=offset, line=line, bad=bad)
        job.save()
        texts.clear()
        places.clear()

    file.seek(offset)
    chars = 0
    for size, raw in sized_lines(file, MAX_LINE_BYTES):
        line += 1
        problem = f"too long: more than {MAX_LINE_BYTES} bytes" if raw is None else ""
        if raw and raw.removeprefix(codecs.BOM_UTF8).strip():
            try:
                texts.append(parse_record(raw)["text"])
                places.append((offset, line))
                chars += len(texts[-1])
            except ValueError as error:
                problem = printable(str(error))
        if problem and not settings["skip_bad"]:
            raise ValueError(f"{path}:{line}: {problem}. Mend it, or leave bad lines out: --skip-bad (skip_bad=True)")
        bad += bool(problem)
        for _ in range((offset + size) // MB - offset // MB):
            step()
        offset += size
        if chars >= BATCH_CHARS:
            save()
            chars = 0
    if bad and not state["documents"] and not texts:
        raise ValueError(f"{path}: not one of its {line} lines is a record. Is this JSONL?")
    state["signed"] = True
    save()


def compare(
    job: Job, rows_of: Array, first: Array, shingles_of: ShingleSets, threshold: float, bands: int, rows: int,
    step: Callable[[], None],
) -> Array:  # fmt: skip
    """The second pass, from where the job stands: band by band, join what shares a band and is similar in truth.

    Who is in one cluster already isn't compared again: where neighbours are similar, one comparison a member is enough.
    """
    parent = job.parent()
    parent = first.copy() if parent is None else parent
    distinct = np.flatnonzero(first == np.arange(len(first)))

    def consider(pairs: Array) -> None:
        at = roots(parent, pairs)
        pairs = pairs[at[:, 0] != at[:, 1]]
        pairs = pairs[likely(rows_of[pairs[:, 0]], rows_of[pairs[:, 1]], threshold)]
        join(parent, verify(pairs.tolist(), shingles_of, threshold))
        job.state["compared"] += len(pairs)

    for band in range(job.state["bands"], bands):
        keys = band_keys(rows_of[distinct, band * rows : (band + 1) * rows], 1, rows)[:, 0]
        for neighbours in islice(bucket_pairs(keys), 1):
            consider(distinct[neighbours])
        divided = in_divided_buckets(keys, roots(parent, distinct))
        for pairs in bucket_pairs(keys[divided]):
            consider(distinct[divided][pairs])
        job.save(parent)
        step()
    return parent


def in_divided_buckets(keys: Array, clusters: Array) -> Array:
    """Which documents have another cluster than their own among those with the same key: bool [docs]."""
    _, bucket = np.unique(keys, return_inverse=True)
    least, most = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), -1)
    np.minimum.at(least, bucket, clusters)
    np.maximum.at(most, bucket, clusters)
    return (least < most)[bucket]


def write(
    documents: Array, kept: Array, first: Array, shingles_of: ShingleSets, path_out: Path, removed: Path,
    step: Callable[[], None],
) -> None:  # fmt: skip
    """The third pass: the kept lines to path_out, and a line on every other one to removed."""
    with (
        replacing(removed) as part_removed,
        replacing(path_out) as part_out,
        part_removed.open("w", encoding="utf-8") as log,
        part_out.open("wb") as out,
    ):
        for i, root in enumerate(kept.tolist()):
            if i == root:
                shingles_of.file.seek(int(documents["offset"][i]))
                out.write(shingles_of.file.readline().rstrip(b"\r\n") + b"\n")
            else:
                similarity = 1.0 if first[i] == root else jaccard(shingles_of(int(first[i])), shingles_of(root))
                row = {"line": int(documents["line"][i]), "kept_line": int(documents["line"][root]),
                       "kind": "near" if first[i] == i else "exact", "similarity": round(similarity, 4)}  # fmt: skip
                log.write(json.dumps(row) + "\n")
            if i % 1000 == 999:
                step()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when all is written, 2 for an error told in a line, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m shared.data.dedup", description=__doc__.split(":")[0])
    parser.add_argument("input", metavar="IN", type=Path, help='JSONL: an object with a "text" on each line')
    parser.add_argument("output", metavar="OUT", type=Path, help="the records that are kept; replaced when all is done")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="Jaccard similarity, default %(default)s")
    parser.add_argument("--num-perm", type=int, default=NUM_PERM, help="numbers in a signature, default %(default)s")
    parser.add_argument("--ngram", type=int, default=NGRAM, help="words in a shingle, default %(default)s")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad lines out, instead of stopping at the first")
    options = parser.parse_args(arguments)

    def work() -> None:
        print(deduplicate(options.input, options.output, options.threshold, options.num_perm, options.ngram,
                          options.skip_bad))  # fmt: skip

    return run_command(work, "Stopped. What is done is kept; the same command goes on from there.")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
