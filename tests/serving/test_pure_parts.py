"""What chapter 14's modules have beside their exercises: judged by scenes on a clock that jumps, and by small files."""

import asyncio
import json
import random
from hashlib import sha256
from pathlib import Path

import pytest

from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import run_virtual
from shared.serving.cluster.prefix_router import PrefixRouter
from shared.serving.engines.resume import MAX_DEATHS, Open, sort_out
from shared.serving.engines.supervision import RestartPolicy
from shared.serving.guard.admission import Admission, Busy, Place
from shared.serving.guard.deadline import Deadline, DeadlinePassed, within
from shared.serving.guard.drain import Drain, Draining
from shared.serving.guard.keys import Key, KeyFileError, KeyRing, hash_key, new_key
from shared.serving.guard.token_bucket import TokenBucket
from shared.serving.models.router import MAX_HISTORY, NothingToRollBack, Router, uniform

PARAMS = SamplingParams(max_tokens=8)


def now() -> float:
    return asyncio.get_running_loop().time()


# token_bucket


def test_what_was_not_used_goes_back():
    bucket = TokenBucket(1.0, 10.0, 0.0)
    assert bucket.take(8, 0.0) == 0.0
    bucket.give_back(5)
    assert bucket.remaining(0.0) == 7.0
    bucket.give_back(100)
    assert bucket.remaining(0.0) == 10.0  # never above the burst


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("inf"))])
def test_a_bucket_needs_a_rate_and_a_burst(rate, burst):
    with pytest.raises(ValueError, match="rate and burst"):
        TokenBucket(rate, burst, 0.0)


@pytest.mark.parametrize("n", [-1, float("nan")])
def test_tokens_are_never_minted(n):
    bucket = TokenBucket(1.0, 10.0, 0.0)
    for call in (lambda: bucket.take(n, 0.0), lambda: bucket.give_back(n)):
        with pytest.raises(ValueError, match="number of tokens"):
            call()
    assert bucket.remaining(0.0) == 10.0


# admission


def test_a_place_is_released_once():
    async def scene():
        admission = Admission(2, 0, 0, now)
        first, second = await admission.acquire("a", Deadline(9.0)), await admission.acquire("a", Deadline(9.0))
        first.release()
        first.release()
        assert admission.num_running == 1
        second.release()
        assert admission.num_running == 0

    run_virtual(scene())


def test_retry_after_follows_how_long_places_are_held():
    async def scene():
        admission = Admission(1, 9, 9, now)
        for _ in range(60):
            place = await admission.acquire("a", Deadline(10_000.0))
            await asyncio.sleep(10.0)
            place.release()
        held = await admission.acquire("a", Deadline(10_000.0))
        tasks = [asyncio.create_task(admission.acquire("a", Deadline(10_000.0))) for _ in range(3)]
        await asyncio.sleep(0)
        assert admission.retry_after() == pytest.approx(4 * 10.0, rel=0.02)  # the one that runs, and three
        held.release()
        for task in tasks:
            task.cancel()

    run_virtual(scene())


def test_retry_after_counts_places_and_not_what_was_never_held():
    """Three who wait for all eight places take four rounds; and whoever hangs up as it's granted held nothing."""

    async def scene():
        admission = Admission(8, 9, 9, now, held_s=10.0)
        held = await admission.acquire("a", Deadline(100.0), 8)
        tasks = [asyncio.create_task(admission.acquire("a", Deadline(100.0), 8)) for _ in range(3)]
        await asyncio.sleep(20.0)
        assert admission.retry_after() == 40.0
        held.release()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        assert admission.expected_s() == pytest.approx(20.0)

    run_virtual(scene())


@pytest.mark.parametrize("n", [0, -3, 1.5])
def test_a_request_takes_a_place_at_least(n):
    async def scene():
        admission = Admission(2, 0, 0, now)
        with pytest.raises(ValueError, match="n must be"):
            await admission.acquire("a", Deadline(9.0), n)
        assert admission.num_running == 0

    run_virtual(scene())


@pytest.mark.parametrize("bounds", [(0, 1, 1), (1, -1, 1), (1, 1, -1), (1.5, 1, 1), (float("nan"), 1, 1)])
def test_an_admission_needs_whole_bounds(bounds):
    with pytest.raises(ValueError, match="max_running must be a whole number"):
        Admission(*bounds, now)


def test_the_longest_queue_gives_way_when_the_queue_is_full():
    """Nobody is ever kept out by those who have two more waiting, and nobody is pushed out for one who has as many."""

    async def scene():
        admission = Admission(1, 6, 6, now)
        held = await admission.acquire("a", Deadline(100.0))
        tasks = [asyncio.create_task(admission.acquire("greedy", Deadline(100.0))) for _ in range(6)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(admission.acquire("modest", Deadline(100.0))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert admission.waiting_by_key == {"greedy": 3, "modest": 3}
        with pytest.raises(Busy, match="6 requests wait"):
            await admission.acquire("modest", Deadline(100.0))
        await asyncio.sleep(1.0)
        refused = [task for task in tasks if task.done()]
        assert refused == tasks[3:6]  # those of the greedy key that came last
        assert all(isinstance(task.exception(), Busy) for task in refused)
        held.release()
        order = []
        while waiting := [task for task in tasks if task not in refused and task not in order]:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (done,) = [task for task in waiting if task.done()]
            order.append(done)
            done.result().release()
        assert [tasks.index(task) for task in order] == [0, 6, 1, 7, 2, 8]
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    run_virtual(scene())


def test_pushed_out_and_cancelled_at_once_gives_nothing_back():
    async def scene():
        admission = Admission(1, 2, 2, now)
        held = await admission.acquire("a", Deadline(100.0))
        greedy = [asyncio.create_task(admission.acquire("greedy", Deadline(100.0))) for _ in range(2)]
        await asyncio.sleep(0)
        modest = asyncio.create_task(admission.acquire("modest", Deadline(100.0)))
        greedy[1].cancel()
        await asyncio.sleep(1.0)
        assert admission.num_running == 1
        held.release()
        (await greedy[0]).release()
        (await modest).release()
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    run_virtual(scene())


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_of_callers(seed):
    """Whoever comes, leaves or is refused: never too many run, keys take turns, and in the end nobody is left over."""
    rng = random.Random(seed)

    async def scene():
        admission = Admission(rng.randint(1, 4), rng.randint(0, 6), rng.randint(0, 4), now)
        most, ends = 0, []

        async def call(key: str):
            nonlocal most
            await asyncio.sleep(rng.randint(0, 20))
            n = rng.randint(1, 2)
            try:
                place = await admission.acquire(key, Deadline(now() + rng.randint(0, 9)), n)
            except (Busy, DeadlinePassed) as error:
                return ends.append(type(error).__name__)
            assert isinstance(place, Place)
            most = max(most, admission.num_running)
            try:
                await asyncio.sleep(rng.randint(0, 5))
            finally:
                place.release()
            return ends.append("served")

        tasks = [asyncio.create_task(call(rng.choice("abc"))) for _ in range(40)]
        for task in rng.sample(tasks, 8):
            asyncio.get_running_loop().call_later(rng.randint(0, 24), task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= max(admission.max_running, 2)
        assert (admission.num_running, admission.num_waiting, admission.waiting_by_key) == (0, 0, {})
        assert "served" in ends
        assert all(task.cancelled() or task.exception() is None for task in tasks)

    run_virtual(scene())


# deadline


def test_within_what_is_left():
    async def scene():
        deadline = Deadline.after(5.0, now())
        assert await within(deadline, asyncio.sleep(2.0, "done"), now) == "done"
        with pytest.raises(DeadlinePassed):
            await within(deadline, asyncio.sleep(4.0), now)
        assert now() == pytest.approx(5.0)
        assert deadline.expired(now())

        async def own_timeout():
            raise TimeoutError("the disk's")

        with pytest.raises(TimeoutError, match="the disk's"):
            await within(Deadline.after(5.0, now()), own_timeout(), now)

    run_virtual(scene())


# drain


def test_whoever_is_in_counts_and_newcomers_are_refused():
    async def scene():
        drain = Drain()
        drain.enter()
        drain.enter()
        drain.leave()
        assert (drain.num_open, drain.draining) == (1, False)
        drain.begin()
        with pytest.raises(Draining, match="shutting down"):
            drain.enter()
        assert drain.num_open == 1
        drain.leave()
        with pytest.raises(RuntimeError, match="more often than enter"):
            drain.leave()
        assert drain.num_open == 0

    run_virtual(scene())


# keys


def write(folder: Path, *lines: str) -> Path:
    path = folder / "keys.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def entry(name: str, key: str, **limits) -> str:
    return json.dumps({"name": name, "sha256": sha256(key.encode()).hexdigest(), **limits})


def test_keys_of_a_file_and_of_the_environment(tmp_path):
    alice = entry("alice", "sk-a", requests_per_minute=60, max_waiting=4)
    path = write(tmp_path, "# who may call", "", alice, entry("root", "sk-r", admin=True))
    ring = KeyRing.load(path, api_key="sk-env", admin_key="sk-op")
    assert [key.name for key in ring.keys] == ["alice", "root", "default", "admin"]
    alice = ring.find("sk-a")
    assert (alice.requests_per_minute, alice.tokens_per_minute, alice.max_waiting, alice.admin) == (60, None, 4, False)
    assert ring.find("sk-r").admin
    assert ring.find("sk-op").admin
    assert not ring.find("sk-env").admin
    assert len(KeyRing.load()) == 0


def test_a_digest_may_be_written_in_capitals(tmp_path):
    path = write(tmp_path, json.dumps({"name": "a", "sha256": sha256(b"sk-a").hexdigest().upper()}))
    assert KeyRing.load(path).find("sk-a").name == "a"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object"),
        ('{"sha256": "x"}', "name is missing"),
        ('{"name": "", "sha256": "x"}', "name is missing"),
        ('{"name": "a"}', "64 hexadecimal digits"),
        ('{"name": "a", "sha256": "' + "g" * 64 + '"}', "64 hexadecimal digits"),
        ('{"name": "a", "key": "sk-secret"}', "aren't kept in the clear"),
        (entry("sk-secret", "k"), "name begins with sk-"),
        (entry("a", ""), "sha256 is that of an empty text"),
        ('{"name": "a", "sk-secret": "x", "sha256": "' + "a" * 64 + '"}', "field 2 is no setting"),
        ('{"name": "a", "name": "b"}', "a field is there twice"),
        ("[" * 100_000, "too many brackets"),
        (entry("a", "k", requests_per_minute="sk-secret"), "requests_per_minute must be a number above 0"),
        (entry("a", "k", requests_per_hour=3), "field 3 is no setting"),
        (entry("a", "k", requests_per_minute=0), "requests_per_minute must be a number above 0"),
        (entry("a", "k", requests_per_minute=True), "requests_per_minute must be a number above 0"),
        (entry("a", "k", tokens_per_minute=-1), "tokens_per_minute must be a number above 0"),
        (entry("a", "k", max_waiting=1.5), "max_waiting must be a whole number"),
        (entry("a", "k", admin="yes"), "admin must be true or false"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says):
    path = write(tmp_path, "# keys", entry("fine", "sk-fine"), line)
    with pytest.raises(KeyFileError, match=says) as error:
        KeyRing.load(path)
    assert f"{path}, line 3" in str(error.value)
    assert "sk-secret" not in str(error.value)


def test_the_same_twice_and_no_file(tmp_path):
    for lines, says in (
        ((entry("a", "x"), entry("a", "y")), "the same name"),
        ((entry("a", "x"), entry("b", "x")), "the same key is there twice"),
    ):
        with pytest.raises(KeyFileError, match=says):
            KeyRing.load(write(tmp_path, *lines))
    with pytest.raises(KeyFileError, match="can't be read"):
        KeyRing.load(tmp_path / "none.jsonl")
    (tmp_path / "keys.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeyFileError, match="can't be read"):
        KeyRing.load(tmp_path / "keys.jsonl")


def test_nothing_is_no_key():
    """`Authorization: Bearer`, with nothing behind it, against the hash that an unset variable gives."""
    for digest in (sha256(b"").hexdigest(), sha256(b"k").hexdigest().upper(), "é", "", None):
        with pytest.raises(ValueError, match="sha256"):
            KeyRing([Key("a", digest)])
    ring = KeyRing([Key("a", hash_key("k"))])
    assert [ring.find(presented) for presented in ("", b"", "\ud800")] == [None] * 3


def test_new_keys():
    made = {new_key() for _ in range(50)}
    assert len(made) == 50
    assert all(len(key) > 40 and key.isascii() for key in made)
    assert hash_key("é") == hash_key("é".encode()) == sha256("é".encode()).hexdigest()
    assert KeyRing([Key("a", hash_key("é"))]).find("é".encode()).name == "a"


# supervision


@pytest.mark.parametrize("max_exits", [0, 1001, 2.5, True, "5"])
def test_a_policy_gives_up_some_time(max_exits):
    with pytest.raises(ValueError, match="max_exits"):
        RestartPolicy(max_exits=max_exits)


@pytest.mark.parametrize("name", ["first_s", "longest_s", "settled_s"])
@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_policy_waits_forwards(name, seconds):
    with pytest.raises(ValueError, match=name):
        RestartPolicy(**{name: seconds})


# resume


def deaths(request: Open, n: int) -> Open:
    for _ in range(n):
        request.on_death()
    return request


def test_each_answer_has_its_tokens():
    with pytest.raises(ValueError, match="each of the 2 answers"):
        Open("r", [1], SamplingParams(n=2), outputs=[[1]])


def test_a_token_clears_a_request():
    request = deaths(Open("r", [1], PARAMS), 2)
    request.on_output(0, [5], False)
    assert request.deaths == 0
    assert request.outputs == [[5]]


def test_only_the_guilty_one_fails():
    """One of five requests kills every engine that has it, in the first step. The others lose nothing."""
    requests = {name: Open(name, [1], PARAMS) for name in "abcde"}
    unfinished, failed, died = list(requests.values()), [], 0
    while unfinished:
        now_, held, lost = sort_out(unfinished)
        failed += lost
        unfinished = [request for request in unfinished if request not in lost]
        while now_:
            if any(request.request_id == "c" for request in now_):
                died += 1
                for request in now_:
                    request.on_death()
                break
            for request in now_:
                request.on_output(0, [7], True)
            unfinished = [request for request in unfinished if not request.ended]
            now_, held, lost = sort_out(held)
    assert [request.request_id for request in failed] == ["c"]
    assert died == MAX_DEATHS
    assert all(requests[name].outputs == [[7]] for name in "abde")


def test_new_requests_wait_behind_a_suspect():
    suspect, fresh = deaths(Open("s", [1], PARAMS), MAX_DEATHS - 1), Open("f", [1], PARAMS)
    assert sort_out([fresh, suspect]) == ([suspect], [fresh], [])
    assert sort_out([fresh]) == ([fresh], [], [])
    assert sort_out([]) == ([], [], [])


# router


def test_promote_and_roll_back():
    router = Router({"v1": 1.0})
    router.set_shares({"v1": 0.9, "v2": 0.1})
    router.set_shares({"v2": 0.1, "v1": 0.9})  # no change, so nothing to go back to
    router.promote("v2")
    assert router.shares == {"v2": 1.0}
    assert router.rollback() == {"v1": 0.9, "v2": 0.1}
    assert router.rollback() == router.shares == {"v1": 1.0}
    with pytest.raises(NothingToRollBack):
        router.rollback()


def test_what_rollback_returns_is_a_copy():
    router = Router({"v1": 1.0})
    router.promote("v2")
    router.rollback()["v1"] = 99
    assert router.shares == {"v1": 1.0}


def test_only_so_many_changes_are_kept():
    router = Router({"v1": 1.0})
    for k in range(2 * MAX_HISTORY):
        router.promote(f"v{k % 2}")
    assert len(router.history) == MAX_HISTORY
    assert router.rollback() == {"v0": 1.0}


def test_any_text_draws_a_number():
    assert 0 < uniform("\ud800", "v1") < 1


def test_what_is_unloaded_is_forgotten():
    router = Router({"v1": 1.0})
    router.set_shares({"v1": 0.5, "v2": 0.5})
    with pytest.raises(ValueError, match="'v2' has a share"):
        router.forget("v2")
    router.set_shares({"v1": 1.0, "v2": 0.0})
    router.forget("v2")
    assert router.shares == {"v1": 1.0}
    assert router.rollback() == {"v1": 1.0}  # not the shares that v2 had a part in
    with pytest.raises(NothingToRollBack):
        router.rollback()


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({}, "sum to 1"),
        ({"a": 0.5}, "sum to 0.5"),
        ({"a": 0.5, "b": 0.6}, "sum to 1.1"),
        ({"a": -0.5, "b": 1.5}, "'a' must be a number"),
        ({"a": float("nan")}, "'a' must be a number"),
        ({"a": float("inf")}, "'a' must be a number"),
        ({1: 1.0}, "name must be a text"),
        ({"a": True}, "'a' must be a number"),
        ({"a": "1"}, "'a' must be a number"),
    ],
)
def test_shares_that_are_none(shares, says):
    router = Router({"v1": 1.0})
    with pytest.raises(ValueError, match=says):
        router.set_shares(shares)
    assert router.shares == {"v1": 1.0}
    assert router.history == []


# prefix_router


def test_replicas_come_and_go():
    router = PrefixRouter("ab", block_size=2)
    prompt = [1, 2, 3, 4]
    assert router.pick(prompt, {"a": 1}) == "b"
    assert router.pick(prompt, {"b": 1}) == "b"
    router.add("b")  # started anew: it knows nothing any more
    assert router.pick(prompt, {"b": 1}) == "a"
    router.remove("a")
    router.remove("a")
    assert router.replicas == ["b"]
    assert router.pick(prompt, {}) == "b"
    router.remove("b")
    with pytest.raises(LookupError, match="no replica"):
        router.pick(prompt, {})


def test_only_so_many_blocks_are_remembered():
    router = PrefixRouter("ab", block_size=1, max_blocks=3)
    router.pick([1, 2], {"b": 1})
    router.pick([3, 4], {"b": 1})  # a has 3, 4 and the beginning of the first, whose end was used least recently
    assert router.pick([1, 9], {"a": 1}) == "a"
    assert router.pick([3, 4, 5, 6, 7], {"a": 8, "b": 0}) == "a"
    assert len(router._known["a"]) == 3


@pytest.mark.parametrize(
    "setting",
    [{"block_size": 0}, {"block_size": -4}, {"max_imbalance": -1}, {"max_imbalance": float("nan")}, {"max_blocks": -1}],
)
def test_settings_that_are_none(setting):
    with pytest.raises(ValueError, match="block_size must be"):
        PrefixRouter("ab", **setting)
