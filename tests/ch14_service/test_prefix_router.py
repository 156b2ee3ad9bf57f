"""Exercise 14.13: judged by where prompts go, one after the other."""

from chapters.ch14_service import prefix_router
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from tests.ch14_service.scenes import survives


def router(*replicas: str, **settings) -> prefix_router.PrefixRouter:
    return prefix_router.PrefixRouter(replicas or ("a", "b", "c"), **({"block_size": 4, "max_imbalance": 3} | settings))


def pick(which: prefix_router.PrefixRouter, token_ids: list[int], **loads: float) -> str:
    with survives("every prompt can be sent to one of the replicas, whatever their loads"):
        got = which.pick(token_ids, loads)
    expect(got is not None, because=NO_RESULT)
    return got


def prompt(subject: int, n: int = 12) -> list[int]:
    return [100 * subject + k for k in range(n)]


@exercise("14.13")
def test_a_new_prompt_goes_to_the_least_loaded():
    which = router()
    expect_equal(
        pick(which, prompt(1), a=2, b=1, c=2), "b", because="nobody knows the prompt, and b has the least to do"
    )
    expect_equal(pick(which, prompt(2), a=1, b=1, c=1), "a", because="all are equal: the first of them")
    expect_equal(
        pick(which, prompt(3), a=2, b=3),
        "c",
        because="c isn't among the loads, so it has nothing to do: a load that isn't given is 0",
    )


@exercise("14.13")
def test_the_same_prompt_comes_back():
    which = router()
    pick(which, prompt(1), a=1, b=0, c=1)
    expect_equal(
        pick(which, prompt(1), a=0, b=2, c=0),
        "b",
        because="b was sent this prompt before and still has its keys and values, which saves computing it: the load "
        "decides only among those who know as much. Was it remembered where the prompt went?",
    )
    expect_equal(
        pick(which, [*prompt(1), 7, 8, 9], a=0, b=2, c=0), "b", because="a prompt that begins as a known one is known"
    )
    expect_equal(
        pick(which, prompt(2), a=0, b=0, c=0), "a", because="another prompt: nobody knows it, so only the load counts"
    )


@exercise("14.13")
def test_the_longest_beginning_wins():
    which = router()
    pick(which, prompt(1, 4), a=0, b=1, c=1)
    which._remember("b", which._names(prompt(1, 8)))
    expect_equal(
        pick(which, prompt(1, 12), a=0, b=2, c=0),
        "b",
        because="a knows one block of it and b two: the longest beginning counts, though a has less to do",
    )


@exercise("14.13")
def test_only_the_chosen_one_knows():
    which = router()
    pick(which, prompt(1), a=1, b=0, c=1)
    known = {replica: which._num_known(replica, which._names(prompt(1))) for replica in "abc"}
    expect_equal(
        known,
        {"a": 0, "b": 3, "c": 0},
        because="the prompt went to b, so b knows its three blocks, and nobody else does",
    )


@exercise("14.13")
def test_the_imbalance_has_a_bound():
    which = router()
    pick(which, prompt(1), a=1, b=0, c=1)
    expect_equal(
        pick(which, prompt(1), a=1, b=4, c=2),
        "b",
        because="b has three more to do than the least loaded, and that is just what max_imbalance=3 allows",
    )
    expect_equal(
        pick(which, prompt(1), a=1, b=5, c=2),
        "a",
        because="b knows the prompt but has four more to do than a, and max_imbalance is 3: everybody whose prompt "
        "begins alike would queue at b, while others are idle",
    )
    expect_equal(
        pick(which, prompt(1), a=0, b=5, c=0),
        "a",
        because="a has the prompt by now, for it was sent there when b was too busy: remember that as well",
    )


@exercise("14.13")
def test_measured_from_the_least_loaded():
    which = router()
    pick(which, prompt(1), a=50, b=49, c=50)
    expect_equal(
        pick(which, prompt(1), a=50, b=52, c=51),
        "b",
        because="b has two more to do than the least loaded. It's the difference that counts: when all have fifty, "
        "nobody is unbalanced",
    )
    expect_equal(
        pick(which, prompt(1), a=90, b=54, c=50),
        "c",
        because="b has four more than c, the least loaded; that a has still more is no excuse",
    )


@exercise("14.13")
def test_measured_from_those_that_are_there():
    which = router()
    pick(which, prompt(1), a=1, b=0, c=1)
    expect_equal(
        pick(which, prompt(1), a=4, b=5),
        "c",
        because="c's load isn't given, so it's 0 and the least; b has five more, and max_imbalance is 3",
    )
    which = router()
    pick(which, prompt(1), a=1, b=0, c=1)
    expect_equal(
        pick(which, prompt(1), a=10, b=13, c=10, gone=9),
        "b",
        because="the loads name a replica that was removed: the least loaded is one of self._known, here with 10, and "
        "b has three more",
    )


@exercise("14.13")
def test_the_best_of_those_who_may():
    which = router()
    which._remember("a", which._names(prompt(1, 8)))
    which._remember("b", which._names(prompt(1, 12)))
    expect_equal(
        pick(which, prompt(1), a=2, b=9, c=0),
        "a",
        because="b knows most of it and is too busy. Of the others a knows two blocks and may be chosen: the best of "
        "those who aren't too busy, and not simply the least loaded",
    )


@exercise("14.13")
def test_a_chat_that_grows():
    which = router()
    for n in (4, 8, 12):
        pick(which, prompt(1, n), a=1, b=0, c=1)
    expect_equal(
        which._num_known("b", which._names(prompt(1))),
        3,
        because="a chat went on at b, one block longer each time: it's remembered each time, also when a part of it "
        "was known",
    )


@exercise("14.13")
def test_what_is_used_stays():
    which = router(max_blocks=2)
    for subject in (1, 2, 1, 3):
        pick(which, prompt(subject, 4), a=1, b=0, c=1)
    expect_equal(
        [which._num_known("b", which._names(prompt(subject, 4))) for subject in (1, 2, 3)],
        [1, 0, 1],
        because="b remembers two blocks, those used last: 1 came again before 3 did, so 2 is forgotten. Remember also "
        "what is known, or what everybody asks is forgotten first",
    )


@exercise("14.13")
def test_the_loads_stay_as_they_are():
    loads = {"a": 2, "b": 1, "c": 2}
    with survives("every prompt can be sent to one of the replicas, whatever their loads"):
        router().pick(prompt(1), loads)
    expect_equal(loads, {"a": 2, "b": 1, "c": 2}, because="the loads are the caller's: pick reads them, and no more")


@exercise("14.13")
def test_among_those_who_know_as_much():
    which = router()
    for replica in "abc":
        which._remember(replica, which._names(prompt(1)))
    expect_equal(pick(which, prompt(1), a=2, b=3, c=1), "c", because="all know it, so the least loaded gets it")
    expect_equal(pick(which, prompt(1), a=2, b=1, c=1), "b", because="b and c are equal in all: the first of them")


@exercise("14.13")
def test_turns_without_a_known_beginning():
    """Short prompts have no full block, and spread by load alone."""
    which, loads = router(), {"a": 0, "b": 0, "c": 0}
    for k in range(30):
        loads[pick(which, [k, k + 1], **loads)] += 1
    expect_equal(
        loads, {"a": 10, "b": 10, "c": 10}, because="prompts that nobody knows should spread evenly, by the loads"
    )
