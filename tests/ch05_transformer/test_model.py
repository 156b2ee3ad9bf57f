"""Exercise 5.8, a row at a time: judged by the model made of torch's own functions, and by stored logits of
transformers."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chapters.ch05_transformer import transformer
from chapters.judge import NO_RESULT, exercise, expect, expect_close, expect_equal
from shared.model.config import ModelConfig
from tests.ch05_transformer import oracle
from tests.ch05_transformer.lively import CONFIG, EARLIER, expect_spared_head, ids, judge, model, with_caches
from tests.model import variants


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
