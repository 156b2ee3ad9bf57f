"""`python -m chapters evaluate`: is a candidate model worse than the baseline, beyond noise?"""

import json
import traceback
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
    documents: Annotated[
        int, typer.Option(min=0, help="how many held-out documents to score; fewer than 20 prove nothing")
    ] = 64,
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
        status = compare(candidate, baseline, json, cases, tags, documents, seed, tolerance, why)
    except KeyboardInterrupt:
        console.print("interrupted: nothing was decided, and nothing was written")
        raise typer.Exit(130) from None
    except BookError:
        raise
    except Exception as error:  # Python would end with 1, which means worse
        traceback.print_exc()
        raise BookError(f"nothing was decided: {type(error).__name__}: {error}") from error
    raise typer.Exit(status)


@dataclass(frozen=True)
class Candidate:
    """A model's folder, what goes with it, and whether it is quantised once it is loaded."""

    path: Path
    int8: bool
    tokenizer: "Tokenizer"
    template: "ChatTemplate | None"

    @property
    def name(self) -> str:
        """What the report calls it: the folder's name, and whether it is quantised."""
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

    names = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if tags and not names:
        raise BookError(f"--tags {tags!r} names no tag; leave it out to run all cases")
    tolerance = TOLERANCE if tolerance is None else tolerance
    try:
        cases = load_cases(cases_file or CASES, names)
        old, new = open_model(baseline, "--baseline"), open_model(candidate, "--candidate")
        prepare_output(json)
        cases, no_chats = answerable(cases, [old, new])
        texts, no_texts = comparable(held_out_documents(n_documents, seed, progress=True), [old, new])
        left_out = [*no_chats, *no_texts]
        if not cases and not texts:
            raise BookError("there is nothing to compare: no documents, and no case that both models can take")
        old_results, old_scores = run(load(old), old, "baseline", cases, texts)
        model = load(new)
        results, scores = run(model, new, "candidate", cases, texts)
        report = gate(old_results, results, old_scores, scores, tolerance, seed)
        console.print(f"baseline: {old.name}   candidate: {new.name}", markup=False)
        print_report(report, console, left_out)
        data = {"baseline": old.name, "candidate": new.name, **report_json(report, left_out)}
        if why and report.newly_failing:
            data["causes"] = explain(model, new, report, results)
    except (OSError, ValueError, RuntimeError) as error:
        raise BookError(str(error)) from error
    if json is not None:
        write_report(json, data)
    return report.exit_status


def open_model(spec: str | None, option: str) -> Candidate:
    """Read "DIR" or "DIR:int8", None for the default, and see that everything in the folder can be loaded.

    Raises BookError, which names the option: a folder that can't be used should be known before the other's long run.
    """
    from shared.data.chat import ChatTemplate
    from shared.data.tokenizer import Tokenizer
    from shared.model.fetch import ensure_model
    from shared.model.weights import load_model

    name = None if spec is None else spec.removesuffix(QUANTISED)
    if name is not None and not name.strip():
        raise BookError(f"{option} {spec!r} names no folder; give a model's folder, or DIR:int8 to quantise it")
    path = ensure_model() if name is None else Path(name)
    if not path.is_dir():
        raise BookError(
            f"{option} {spec}: there is no folder {path}; give a model's folder, or DIR:int8 to quantise it"
        )
    try:
        tokenizer = Tokenizer.load(path)
        template = ChatTemplate.load(path) if names_template(path) else None
        load_model(path)  # and let go again: mapped, float32 weights cost nothing
    except (OSError, ValueError) as error:
        raise BookError(f"{option} {path}: {error}") from error
    return Candidate(path, spec is not None and spec.endswith(QUANTISED), tokenizer, template)


def names_template(folder: Path) -> bool:
    """Is there a chat template, whole or damaged? A base model has none; a damaged one is an error."""
    file = folder / "tokenizer_config.json"
    if (folder / "chat_template.jinja").is_file():
        return True
    if not file.is_file():
        return False
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return True  # ChatTemplate.load says what is wrong
    return not isinstance(config, dict) or config.get("chat_template") is not None


def answerable(cases: "list[Case]", models: Sequence[Candidate]) -> "tuple[list[Case], list[str]]":
    """The cases that both models can take, chats only when both have a chat template; and what was left out.

    Raises BookError for a model whose chat template refuses a case.
    """
    from shared.evaluation.regression import prompt_ids

    left_out = []
    chats = sum(bool(case.messages) for case in cases)
    without = [str(model.path) for model in models if model.template is None]
    if chats and without:
        many = "1 chat case is" if chats == 1 else f"{chats} chat cases are"
        left_out.append(f"{many} left out, for there is no chat template in {' and '.join(dict.fromkeys(without))}")
        cases = [case for case in cases if not case.messages]
    for model in models:
        for case in cases:
            try:
                prompt_ids(case, model.tokenizer, model.template)
            except ValueError as error:
                raise BookError(f"{model.path}: case {case.id!r} can't be asked: {error}") from error
    return cases, left_out


def comparable(texts: list[str], models: Sequence[Candidate]) -> tuple[list[str], list[str]]:
    """The beginnings of the texts, without those that one of the tokenizers can't spell; and what was left out."""
    cut = [text.encode()[:MAX_BYTES].decode(errors="ignore") for text in texts]
    good = [text for text in cut if all(m.tokenizer.decode(m.tokenizer.encode(text)) == text for m in models)]
    bad = len(cut) - len(good)
    many = "1 document is" if bad == 1 else f"{bad} documents are"
    return good, [f"{many} left out, since one of the tokenizers can't spell all of it"] if bad else []


def load(spec: Candidate) -> "Transformer":
    """The candidate's weights, quantised to int8 where its name asked for that, which takes some seconds."""
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
