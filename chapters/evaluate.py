"""`python -m chapters evaluate`: is a candidate model worse than the baseline, beyond noise?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chapters.console import console
from chapters.regions import BookError
from chapters.reports import prepare_output, write_report

if TYPE_CHECKING:
    from shared.data.chat import ChatTemplate
    from shared.data.tokenizer import Tokenizer
    from shared.evaluation.gate import Report
    from shared.evaluation.perplexity import DocumentScore
    from shared.evaluation.regression import Case, Generate, Result
    from shared.model.transformer import Transformer

MAX_BYTES = 512  # of each document
QUANTISED = ":int8"


def evaluate(
    candidate: Annotated[str, typer.Option(metavar="DIR[:int8]", help="the model to judge; :int8 quantises it")],
    baseline: Annotated[
        str | None, typer.Option(metavar="DIR[:int8]", help="what it is compared with; default: SmolLM2-135M-Instruct")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", dir_okay=False, help="write the report to this file")
    ] = None,
    cases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the regression set; default: data/regression.jsonl")
    ] = None,
    tags: Annotated[str, typer.Option(metavar="TAG,TAG", help="only cases with one of these tags")] = "",
    documents: Annotated[int, typer.Option(min=0, help="how many held-out documents to score")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="draws the documents and the bootstrap's samples")] = 0,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="bits per byte that a worse candidate may lose; default: 0.02")
    ] = None,
    why: Annotated[bool, typer.Option(help="look for the causes of the cases that fail now and didn't")] = True,
) -> None:
    """Compare two models on the regression set and on held-out documentation.

    Exit status 0: the candidate is not worse; 1: it is, beyond noise; 2: something can't be used.
    """
    try:
        raise typer.Exit(compare(candidate, baseline, json, cases, tags, documents, seed, tolerance, why))
    except KeyboardInterrupt:
        console.print("interrupted: nothing was decided, and nothing was written")
        raise typer.Exit(130) from None


@dataclass(frozen=True)
class Candidate:
    """A model's folder, what goes with it, and whether it is quantised once it is loaded."""

    path: Path
    int8: bool
    tokenizer: "Tokenizer"
    template: "ChatTemplate | None"

    @property
    def name(self) -> str:
        return self.path.resolve().name + (QUANTISED if self.int8 else "")


def compare(
    candidate: str, baseline: str | None, json: Path | None, cases_file: Path | None, tags: str, n_documents: int,
    seed: int, tolerance: float | None, why: bool,
) -> int:  # fmt: skip
    """Run both models, print the report, and return the exit status. Raises BookError for what can't be used."""
    from shared.evaluation.gate import TOLERANCE, gate
    from shared.evaluation.held_out import held_out_documents
    from shared.evaluation.regression import CASES, load_cases
    from shared.evaluation.report import print_report, report_json

    prepare_output(json)
    names = [tag for tag in tags.split(",") if tag]
    tolerance = TOLERANCE if tolerance is None else tolerance
    try:
        cases = load_cases(cases_file or CASES, names)
        old, new = open_model(baseline, "--baseline"), open_model(candidate, "--candidate")
        cases = answerable(cases, [old, new])
        texts = comparable(held_out_documents(n_documents, seed, progress=True), [old, new])
        if not cases and not texts:
            raise BookError("there is nothing to compare: no documents, and no case that both models can take")
        old_results, old_scores = run(load(old), old, "baseline", cases, texts)
        model = load(new)
        results, scores = run(model, new, "candidate", cases, texts)
        report = gate(old_results, results, old_scores, scores, tolerance, seed)
        console.print(f"baseline: {old.name}   candidate: {new.name}", markup=False)
        print_report(report, console)
        data = {"baseline": old.name, "candidate": new.name, **report_json(report)}
        if why and report.newly_failing:
            data["causes"] = explain(model, new, report, results)
    except (OSError, ValueError, RuntimeError) as error:
        raise BookError(str(error)) from error
    if json is not None:
        write_report(json, data)
    return report.exit_status


def open_model(spec: str | None, option: str) -> Candidate:
    """Read "DIR" or "DIR:int8", and what lies in the folder beside the weights. Raises BookError."""
    from shared.data.chat import ChatError, ChatTemplate
    from shared.data.tokenizer import Tokenizer

    int8 = spec is not None and spec.endswith(QUANTISED)
    name = (spec or "").removesuffix(QUANTISED)
    if name:
        path = Path(name)
    else:
        from shared.model.fetch import ensure_model

        path = ensure_model()
    if not path.is_dir():
        raise BookError(
            f"{option} {spec}: there is no folder {path}; give a model's folder, or DIR:int8 to quantise it"
        )
    try:
        template = ChatTemplate.load(path)
    except ChatError:
        template = None
    return Candidate(path, int8, Tokenizer.load(path), template)


def answerable(cases: "list[Case]", models: Sequence[Candidate]) -> "list[Case]":
    """The cases that both models can take: chats only when both have a chat template."""
    if all(model.template for model in models):
        return cases
    chats = sum(bool(case.messages) for case in cases)
    if chats:
        console.print(f"{chats} chat cases are left out, since one of the models has no chat template")
    return [case for case in cases if not case.messages]


def comparable(texts: list[str], models: Sequence[Candidate]) -> list[str]:
    """The beginnings of the texts, without those that one of the tokenizers can't spell."""
    cut = [text.encode()[:MAX_BYTES].decode(errors="ignore") for text in texts]
    good = [text for text in cut if all(m.tokenizer.decode(m.tokenizer.encode(text)) == text for m in models)]
    if len(good) < len(texts):
        console.print(f"{len(texts) - len(good)} documents are left out, since one of the tokenizers can't spell them")
    return good


def load(spec: Candidate) -> "Transformer":
    from shared.model.weights import load_model

    model = load_model(spec.path)
    if not spec.int8:
        return model
    from shared.model.calibration import calibration_ids
    from shared.model.int8 import quantize_int8

    return quantize_int8(model, calibration_ids(spec.tokenizer.encode))


def run(
    model: "Transformer", spec: Candidate, role: str, cases: "list[Case]", texts: list[str]
) -> "tuple[list[Result], list[DocumentScore]]":
    """Answer the cases and score the texts."""
    from shared.evaluation.perplexity import score_documents
    from shared.evaluation.regression import responder, run_cases

    respond = responder(generator(model, spec.tokenizer), spec.tokenizer, spec.template)
    results = run_cases(cases, respond, progress=True, label=f"{role}: cases")
    return results, score_documents(model, spec.tokenizer, texts, progress=True, label=f"{role}: documents")


def explain(
    model: "Transformer", spec: Candidate, report: "Report", results: "list[Result]"
) -> list[dict[str, object]]:
    """Print, and return for the report, why the candidate fails the cases that the baseline passes."""
    from shared.evaluation.attribution import attribute, find_limits, measurer
    from shared.evaluation.regression import responder
    from shared.evaluation.report import attribution_json, attribution_table

    measure = measurer(model, spec.tokenizer)
    limits = find_limits([result for result in results if result.passed], measure)
    respond = responder(generator(model, spec.tokenizer), spec.tokenizer, spec.template)
    found = attribute([after for _, after in report.newly_failing], respond, measure, limits, progress=True)
    console.print(attribution_table(found, limits))
    return attribution_json(found)


def generator(model: "Transformer", tokenizer: "Tokenizer") -> "Generate":
    """The cached loop, as a function that the evaluation can call."""
    from shared.inference.generate import generate
    from shared.inference.sampling import SamplingParams

    def make(prompt_ids: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Iterator[int]:
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        return generate(model, prompt_ids, params, tokenizer.eos_ids)

    return make
