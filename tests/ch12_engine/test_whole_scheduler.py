"""Exercises 12.1 to 12.8 once more, last: storms on the whole scheduler, with one method of the reader's in it.

The scenes before these teach; a storm finds what no scene speaks of, and says no more than what went wrong.
"""

import importlib.util
import inspect
from types import ModuleType

from chapters import ROOT, Todo
from chapters.ch12_engine import scheduler as own
from chapters.judge import Rejected, exercise
from shared.inference.block_manager import BlockManager
from tests.inference import storms

METHODS = {
    "12.1": "urgency",
    "12.2": "_schedule_running",
    "12.3": "_admit",
    "12.4": "_preempt",
    "12.5": "_make_room",
    "12.6": "_start_siblings",
    "12.7": "update",
    "12.8": "finish",
}
STORMS = 160  # 0.2 s

CAUSES = {  # words of a storm's assertion -> the likely cause
    "no progress": "someone never gets on: blocks or a place that are free and not given, or two who send each other "
    "away for ever",
    "nothing is scheduled": "everybody stands still: there is work, and nobody is given a token. Is the first who "
    "waits asked to have more free than it needs?",
    "two sequences write": "a block is written by one who isn't its only holder: ask for a copy before (`_grow` says "
    "False while there is none), and count every holder",
    "is attended to, and isn't there": "it reads keys that are another's, or were never computed: is what counts as "
    "computed what is in its own blocks?",
    "gets no token": "who runs, and who is given tokens, are not the same: someone is scheduled who left, or left out",
    "no token, or more": "n is at least 1 and at most what is missing, and stays so: tokens count as computed in "
    "`update`",
    "misses nothing": "a sequence that misses nothing is never given anything again: each that starts or goes on gets "
    "its token in `update`",
    "not in order of urgency": "self.running is in order of urgency, of numbers that never change: insert with "
    "`_run`, and leave `arrived` and `priority` alone",
    "wrong one was sent away": "the least urgent goes first, whoever asks",
    "someone was overtaken": "the queue's order is off: an entry left the heap from another place than its top, or "
    "an urgency is no longer what it was at arrival",
    "short of tokens": "tokens are handed out by what is missing, prompt or answer, as long as the budget lasts",
    "nobody called finish": "only who has seen the last token ends a sequence: ended before, that token is never sent",
    "no logits vouch": "blocks of an unfinished prompt were published: only logits show that they are sound",
    "without an end": "someone waits in no queue, or its status lets it be dropped: it's lost, and its caller waits "
    "for ever",
    "times in the queue": "who waits stands in the queue once: an entry for each, but none for a sibling whose parent "
    "will still read the prompt",
    "doesn't wait": "a preempted sequence isn't ended: it waits, and comes back",
    "holders counted": "the reference counts and the tables don't agree: each block is shared, taken and released as "
    "often as tables name it",
    "blocks leaked": "blocks are held that nobody will release",
    "doesn't run": "blocks are held by someone who doesn't run: nobody will release them",
    "queue's length": "num_waiting and those who wait don't agree: it changes by one with each that comes or goes",
    "place in the queue": "num_waiting and those who wait don't agree, or one who was accepted is accepted anew",
    "more are queued": "num_waiting and those who wait don't agree: max_waiting bounds the queue by it",
    "names are not": "a sequence's names are those of its own full blocks, from the first on",
    "status says": "the caller says how it ended",
    "prompt isn't": "the prompt was changed: the tokens are the caller's, and only the sampled ones are added",
    "a wrong answer": "an answer isn't what the model says: a token was lost, doubled, or is another sequence's",
    "more tokens were hit": "the hit rate counts tokens that nobody asked for: `share` is told how many were asked "
    "for, and only for what `match` found",
}
OTHER = "a rule of the scheduler is broken in a whole run, although each scene before went well"


def load_reference() -> ModuleType:
    """The finished scheduler itself, even where the reader's own stands in for it."""
    spec = importlib.util.spec_from_file_location("reference_scheduler", ROOT / "shared/inference/scheduler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = load_reference().Scheduler


def with_one_of_the_readers(ident: str) -> type[own.Scheduler]:
    """The reader's class, with the reference's methods for the other exercises."""
    others = {name: getattr(REFERENCE, name) for other, name in METHODS.items() if other != ident}
    return type("Scheduler", (own.Scheduler,), others)


def test_each_cause_belongs_to_an_assertion():
    assertions = inspect.getsource(storms) + inspect.getsource(BlockManager.check)
    assert [words for words in CAUSES if words not in assertions] == []


def weather_storms(ident: str) -> None:
    scheduler_of = with_one_of_the_readers(ident)
    for seed in range(STORMS):
        try:
            storms.storm(seed, scheduler_of)
        except (Todo, Rejected):
            raise
        except AssertionError as error:
            because = next((cause for words, cause in CAUSES.items() if words in str(error)), OTHER)
            raise Rejected(f"in storm {seed}: {error}".partition("\n")[0], because) from None
        except Exception as error:
            raise Rejected(f"in storm {seed} it raised {type(error).__name__}: {error}", OTHER) from error


@exercise("12.1")
def test_urgency_in_storms():
    weather_storms("12.1")


@exercise("12.2")
def test_schedule_running_in_storms():
    weather_storms("12.2")


@exercise("12.3")
def test_admit_in_storms():
    weather_storms("12.3")


@exercise("12.4")
def test_preempt_in_storms():
    weather_storms("12.4")


@exercise("12.5")
def test_make_room_in_storms():
    weather_storms("12.5")


@exercise("12.6")
def test_start_siblings_in_storms():
    weather_storms("12.6")


@exercise("12.7")
def test_update_in_storms():
    weather_storms("12.7")


@exercise("12.8")
def test_finish_in_storms():
    weather_storms("12.8")
