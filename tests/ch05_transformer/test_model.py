"""Exercise 5.8: judged by the model made of torch's own functions, and by stored logits of transformers."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chapters.ch05_transformer import transformer
from chapters.judge import NO_RESULT, crash_means, exercise, expect, expect_close, expect_equal
from shared.model.config import ModelConfig
from tests.ch05_transformer import oracle
from tests.model import variants
from tests.tiny import TINY

CONFIG = dataclasses.replace(TINY, num_hidden_layers=2)  # a cache that is right at one layer can be wrong at two
EARLIER = "if 5.1 to 5.7 pass, look at how the steps follow one another: embed, layers, final norm, head"


def model(config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The reader's, with weights large enough for tokens to sway one another, and norms that aren't 1."""
    torch.manual_seed(0)
    built = transformer.Transformer(config)
    for weight in built.parameters():
        if weight.dim() == 1:
            nn.init.uniform_(weight, 0.5, 1.5)
        else:
            nn.init.normal_(weight, std=2 / weight.shape[1] ** 0.5)
    return built.to(dtype).eval().requires_grad_(False)


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(CONFIG.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1))


def judge(got: Tensor, want: Tensor, wrong: Sequence[tuple[str, Tensor]], because: str) -> None:
    """Reject `got` by the mistake that gives exactly these numbers, where there is one; by `because` otherwise."""
    for cause, numbers in wrong:
        if isinstance(got, Tensor) and got.shape == numbers.shape:
            expect(not torch.allclose(got.double(), numbers, rtol=1e-4, atol=1e-4), because=cause)
    expect_close(got, want, rtol=1e-4, atol=1e-4, because=because)  # the mistakes are off by 0.01 and more


def with_caches(built: nn.Module, part: Tensor, caches: list, **how: bool) -> Tensor:
    """The reader's logits, or the likely cause why they stopped."""
    new, old = part.shape[1], caches[0].length
    with crash_means(
        f"{new} new tokens after {old} in the caches: the mask is [new, all] = [{new}, {old + new}], and each layer "
        "has its own cache, caches[i]"
    ):
        return built(part, caches, **how)


@exercise("5.8")
@pytest.mark.parametrize("tied", [True, False])
def test_the_model_is_the_oracle(tied):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=tied)
    built = model(config)
    state, tokens = built.state_dict(), ids(2, 7)
    got = built(tokens)
    expect(isinstance(got, Tensor), because=f"the result is one tensor, the logits. {NO_RESULT}")
    expect_equal(
        list(got.shape), [2, 7, 97], because="logits are [batch, length, vocab]: one score for each token of the list"
    )
    head = "the embedding's weight, for this model is tied" if tied else "lm_head's weight"
    want = oracle.logits(state, config, tokens)
    judge(
        got,
        want,
        [
            ("the head was applied before the final norm: self.model.norm(x) comes first, then the head",
             oracle.logits(state, config, tokens, final_norm=False)),
            ("the mask is missing: every token reads the future. causal_mask, unless there is a single token",
             oracle.logits(state, config, tokens, causal=False)),
            ("positions are missing: all tokens stand at 0",
             oracle.logits(state, config, tokens, positions=[0] * 7)),
            ("cos and sin are swapped: rope_tables gives the cosine first, and a layer takes it first",
             oracle.logits(state, config, tokens, positions=[-p for p in range(7)])),
            ("theta is config.rope_theta, not 10000",
             oracle.logits(state, dataclasses.replace(config, rope_theta=10000.0), tokens)),
            ("what the layers give is dropped: x = layer(x, ...)", oracle.logits(state, config, tokens, layers=0)),
            ("these are probabilities; logits are what the head gives, with no softmax", want.softmax(dim=-1)),
            ("these are log-probabilities; logits are what the head gives, with no softmax", want.log_softmax(dim=-1)),
        ],
        because=f"not the logits of the same model made of torch's functions (the head is {head}); {EARLIER}",
    )  # fmt: skip


@exercise("5.8")
def test_each_layer_has_its_own_cache():
    caches = [oracle.GrowingCache() for _ in range(2)]
    with_caches(model(), ids(1, 4), caches)
    expect_equal(
        [cache.length for cache in caches],
        [4, 4],
        because="after 4 tokens each of the two caches holds 4: layer i gets caches[i], and gets it once",
    )


@exercise("5.8")
def test_a_chunk_with_warm_caches_is_masked():
    built, tokens = model(), ids(1, 8)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % CONFIG.vocab_size
    rows = []
    for row in (tokens, changed):
        caches = [oracle.GrowingCache() for _ in range(2)]
        with_caches(built, row[:, :3], caches)
        rows.append(with_caches(built, row[:, 3:], caches))
    expect_close(
        rows[0][:, :4],
        rows[1][:, :4],
        because="another last token changed the logits before it: a chunk of several tokens needs the mask with warm "
        "caches, too. Only a single token may go without",
    )


@exercise("5.8")
def test_positions_go_on_from_the_caches():
    built = model()
    state, tokens = built.state_dict(), ids(2, 9)
    for chunks in ([5, 1, 3], [8, 1]):
        caches = [oracle.GrowingCache() for _ in range(2)]
        got = torch.cat([with_caches(built, part, caches) for part in tokens.split(chunks, dim=1)], dim=1)
        restarted = [p for n in chunks for p in range(n)]
        judge(
            got,
            oracle.logits(state, CONFIG, tokens),
            [
                ("positions start at 0 again in every call: with warm caches the first id stands at `start`",
                 oracle.logits(state, CONFIG, tokens, positions=restarted)),
            ],
            because=f"{chunks} tokens at a time, with caches, must give what all at once gives. Off from the second "
            "call on: look at the positions (from start) and at the mask ([new tokens, all tokens])",
        )  # fmt: skip


@exercise("5.8")
@pytest.mark.parametrize("length", [1, 6])
def test_last_only(length):
    built, tokens = model(), ids(2, length)
    got = built(tokens, last_only=True)
    expect_equal(
        list(got.shape), [2, 1, 97], because="last_only gives [batch, 1, vocab]: x[:, -1:], which keeps the axis"
    )
    want = oracle.logits(built.state_dict(), CONFIG, tokens)
    judge(
        got,
        want[:, -1:],
        [
            (
                "with last_only the final norm is missing: cut, norm, head",
                oracle.logits(built.state_dict(), CONFIG, tokens, final_norm=False)[:, -1:],
            ),
        ]
        + [
            ("last_only took the first position: x[:, -1:] is the last", want[:, :1]),
            (
                "with last_only the mask is missing: all positions run through the layers, and are cut after them",
                oracle.logits(built.state_dict(), CONFIG, tokens, causal=False)[:, -1:],
            ),
            (
                "with last_only the layers saw the last token alone: cut after them",
                oracle.logits(built.state_dict(), CONFIG, tokens[:, -1:]),
            ),
        ]
        * (length > 1),
        because=f"last_only must give the last position's logits; {EARLIER}",
    )


@exercise("5.8")
def test_last_only_with_caches():
    built, tokens, caches = model(), ids(2, 6), [oracle.GrowingCache() for _ in range(2)]
    want = oracle.logits(built.state_dict(), CONFIG, tokens)
    for part, end in zip(tokens.split([3, 2, 1], dim=1), (3, 5, 6), strict=True):
        got = with_caches(built, part, caches, last_only=True)
        expect_equal(
            [cache.length for cache in caches],
            [end, end],
            because="last_only spares the head; the caches are handed to the layers and grow all the same",
        )
        judge(
            got, want[:, end - 1 : end], [], because="last_only with caches must give the last position's logits, too"
        )


def expect_spared_head(asked: str, value: object) -> None:
    """`value` for the argument `asked` picks one position; the head must be multiplied by that one alone."""
    rows = []
    real, built = transformer.linear, model()
    head = built.model.embed_tokens.weight

    def spy(x, w):
        rows.extend([x.shape[:-1].numel()] if w is head else [])
        return real(x, w)

    transformer.linear = spy
    try:
        built(ids(2, 6), **{asked: value})
    finally:
        transformer.linear = real
    expect(
        rows,
        because="the head is multiplied by the function `linear`, not by F.linear or @: in chapter 8 its weight may be "
        "packed",
    )
    expect_equal(
        rows,
        [2],
        because=f"with {asked} the head is one call of `linear` on the chosen positions, 2 rows here: cutting after "
        "the head computes all 12 and throws 10 away, and the head is the largest product of all",
    )


@exercise("5.8")
def test_last_only_spares_the_head():
    expect_spared_head("last_only", True)


@exercise("5.8")
def test_tables_are_made_once():
    calls: list[Tensor] = []
    real, built, caches = transformer.rope_tables, model(), [oracle.GrowingCache() for _ in range(2)]

    def spy(*given, **named):
        calls.append(given[0] if given else named["positions"])
        return real(*given, **named)

    for new, want in ((4, [0, 1, 2, 3]), (2, [4, 5])):
        calls.clear()
        transformer.rope_tables = spy
        try:
            with_caches(built, ids(1, new), caches)
        finally:
            transformer.rope_tables = real
        expect_equal(len(calls), 1, because="rope_tables is called once a step, not in every layer: the result is one")
        expect_equal(
            calls[0].flatten().tolist(),
            want,
            because="the first id stands at `start`, and the next ones follow: torch.arange(start, end). A shift of "
            "all changes no logit, and keys stored by another program wouldn't fit",
        )


class Taking(nn.Module):
    """Stands in for a layer; remembers what it was given."""

    def forward(self, x, cos, sin, mask, cache):
        self.given = {"cos": cos, "sin": sin, "mask": mask}
        return x


@exercise("5.8")
def test_everything_is_on_the_ids_device():
    built = model().to("meta")  # a device that is there on every machine, and isn't the CPU
    built.model.layers = nn.ModuleList(Taking() for _ in range(2))
    built(ids(1, 4).to("meta"))
    for name, tensor in built.model.layers[0].given.items():
        where = (
            "positions made on ids.device give tables there" if name != "mask" else "causal_mask takes a device, too"
        )
        expect(tensor is not None, because=f"{name} is missing: four tokens at once need it")
        expect_equal(tensor.device.type, "meta", because=f"{name} isn't where ids and weights are: {where}")


@exercise("5.8")
@pytest.mark.parametrize("name", ["llama, wide heads", "llama 3.1's rope", "qwen2", "qwen3 tied, biases"])
def test_logits_of_transformers(name):
    built = variants.fill(transformer.Transformer(ModelConfig.from_hf(variants.VARIANTS[name])))
    expect_close(
        built(variants.ids()),
        variants.stored(name).astype(np.float64),
        rtol=0,
        atol=1e-4,
        because=f"not what Hugging Face's transformers computes for a small random {name} model. If only llama 3.1 is "
        "off: inverse_frequencies takes config.rope_scaling too, and config.rope_theta",
    )


@exercise("5.8")
def test_far_positions_in_bf16():
    config = dataclasses.replace(CONFIG, max_position_embeddings=512)
    built, tokens = model(config, torch.bfloat16), ids(1, 300)
    want = oracle.logits(built.state_dict(), config, tokens)[:, -8:]
    caches = [oracle.GrowingCache() for _ in range(2)]
    built(tokens[:, :292], caches)
    got = built(tokens[:, 292:], caches)
    expect_equal(got.dtype, torch.bfloat16, because="a model in bf16 gives logits in bf16")
    expect(
        (got.double() - want).abs().mean() < 0.1 * want.std(),
        because="past position 256 a model in bf16 is off by more than rounding: positions must be whole numbers until "
        "rope_tables widens them to float32; torch.arange(start, end), no dtype",
    )


def placed(built: nn.Module, tokens: Tensor, caches: list | None = None, **how: object) -> Tensor:
    """The reader's logits for a call with positions, or the likely cause why it stopped."""
    attending = caches is not None and not hasattr(caches[0], "length")
    with crash_means(
        "these caches have no `length`: they attend by themselves, and where positions are given, nobody need ask. "
        "`start` and caches[i] are all that is wanted"
        if attending
        else "with positions of [batch, length] the tables are [batch, length, head_dim / 2]; q and k have heads "
        "there, so the tables need an axis of one: cos[:, None]. A given mask is handed to the layers as it is"
    ):
        return built(tokens, caches, **how)


@exercise("5.8")
def test_given_positions_are_taken():
    built, tokens = model(), ids(2, 6)
    state, places = built.state_dict(), ([0, 1, 2, 3, 4, 5], [0, 2, 3, 9, 10, 30])
    want = [oracle.logits(state, CONFIG, tokens[k : k + 1], positions=places[k])[0] for k in range(2)]
    mask = torch.tril(torch.ones(6, 6, dtype=torch.bool))
    got = placed(built, tokens[1:], positions=torch.tensor(places[1]), mask=mask)
    ignored = "positions were given, and ignored: the tokens stand where the caller says, not one after another"
    counted = oracle.logits(state, CONFIG, tokens)
    judge(got, want[1][None], [(ignored, counted[1:])], because=f"positions [length]: {EARLIER}")
    got = placed(built, tokens, positions=torch.tensor(places), mask=mask)
    judge(got, torch.stack(want), [(ignored, counted)], because="positions [batch, length]: each row has its own")


@exercise("5.8")
def test_a_given_mask_is_the_only_one():
    built, tokens = model(), ids(2, 5)
    state, positions = built.state_dict(), torch.arange(5)
    forced = "a causal mask of its own was forced on: who gives positions gives the mask too, and None means all"
    causal, free = (oracle.logits(state, CONFIG, tokens, causal=causal) for causal in (True, False))
    got = placed(built, tokens, positions=positions, mask=None)
    judge(got, free, [(forced, causal)], because="positions and no mask: every token may attend to every other")

    rows, longest = [ids(1, n) for n in (5, 3)], 5  # two prompts, the shorter one padded on the left
    padded = torch.cat([torch.cat((torch.zeros(1, longest - row.shape[1], dtype=torch.int64), row), 1) for row in rows])
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    mask = (torch.ones(5, 5, dtype=torch.bool).tril() & real[:, None, None, :]) | torch.eye(5, dtype=torch.bool)
    places = (real.cumsum(1) - 1).clamp(min=0)  # [batch, length]
    got = placed(built, padded, positions=places, mask=mask)
    unmasked = oracle.logits(state, CONFIG, padded)[1:, 2:]
    wrong = [("the given mask was dropped, and the text sees the padding before it", unmasked)]
    for k, row in enumerate(rows):
        want = oracle.logits(state, CONFIG, row)
        because = "a prompt padded on the left, with its mask, must have the logits that it has alone"
        judge(got[k : k + 1, longest - row.shape[1] :], want, wrong if k else [], because=because)

    caches = [oracle.GrowingCache() for _ in range(2)]
    placed(built, padded[:, :4], caches, positions=places[:, :4], mask=mask[:, :, :4, :4])
    got = placed(built, padded[:, 4:], caches, positions=places[:, 4:], mask=real[:, None, None, :])
    for k, row in enumerate(rows):
        want = oracle.logits(state, CONFIG, row)[:, -1:]
        judge(got[k : k + 1], want, [], because="the same batch's last token, the others in caches of two rows")


@exercise("5.8")
def test_a_given_mask_needn_t_be_causal():
    built, tokens = model(), ids(2, 5)
    state, mask = built.state_dict(), torch.ones(5, 5, dtype=torch.bool)
    causal, free = (oracle.logits(state, CONFIG, tokens, causal=causal) for causal in (True, False))
    forced = "the given mask was narrowed to a causal one: it is taken as it is, and here all may see all"
    got = placed(built, tokens, positions=torch.arange(5), mask=mask)
    judge(got, free, [(forced, causal)], because="a mask of True alone: every token may attend to every other")


@exercise("5.8")
def test_rows():
    built, tokens = model(), ids(2, 6)
    want = oracle.logits(built.state_dict(), CONFIG, tokens)
    with crash_means(
        "rows are indices into length, as a tensor: ask `rows is None`, for a tensor of several numbers is neither "
        "true nor false; and cut after the layers, x[:, rows], for x[rows] would pick from the batch"
    ):
        got = built(tokens, rows=torch.tensor([4, 1]))
    expect(
        isinstance(got, Tensor) and got.shape[:2] != (2, 6),
        because="rows was given, and ignored: only the logits of those positions are wanted",
    )
    expect_equal(list(got.shape), [2, 2, 97], because="rows [n] gives [batch, n, vocab]: x[:, rows], before the head")
    expect_close(got, want[:, [4, 1]], rtol=1e-4, atol=1e-4, because="rows=[4, 1] wants positions 4 and 1, as given")
    expect_spared_head("rows", torch.tensor([4]))


class Attending:
    """A cache without a `length` that attends by itself; it remembers the shapes it was given."""

    def __init__(self) -> None:
        self.inner, self.shapes = oracle.GrowingCache(), []

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.shapes.append([list(q.shape), list(k.shape)])
        k, v = self.inner.update(k, v)
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@exercise("5.8")
def test_caches_that_attend():
    built, tokens, caches = model(), ids(1, 7), [Attending() for _ in range(2)]
    parts = tokens.split([4, 3], dim=1), torch.arange(7).split([4, 3])
    got = torch.cat([placed(built, part, caches, positions=at) for part, at in zip(*parts, strict=True)], dim=1)
    expect_equal(
        [cache.shapes for cache in caches],
        [[[[1, 6, n, 8], [1, 2, n, 8]] for n in (4, 3)]] * 2,
        because="a cache with a method `attend` gets its layer's queries, keys and values, and layer i gets caches[i]",
    )
    want = oracle.logits(built.state_dict(), CONFIG, tokens)
    judge(got, want, [], because="with caches that attend by themselves, the logits must be the same")


def test_calls_that_cannot_be_answered():
    built, tokens, at, mask = model(), ids(2, 3), torch.arange(3), torch.ones(3, 3, dtype=torch.bool)
    caches = [oracle.GrowingCache() for _ in range(3)]
    for message, given, how in (
        ("a mask needs positions", tokens, {"mask": mask}),
        ("ids must be", tokens[0], {"positions": at}),
        ("ids must be", tokens[:, :0], {"positions": at[:0]}),
        ("3 caches for 2 layers", tokens, {"positions": at, "caches": caches}),
        ("positions must be", tokens, {"positions": at[:2]}),
        ("positions must be", tokens, {"positions": at[:, None]}),
    ):
        with pytest.raises(ValueError, match=message):
            built(given, **how)
