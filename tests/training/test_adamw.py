"""AdamW as an optimiser of torch's: what it refuses, and that it goes where torch's own does."""

import pytest
import torch

from shared.training.adamw import AdamW, decay_groups
from tests.training.small import small_model, small_stream


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"eps": 0.0}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"betas": (0.9,)}, "betas"),
    ],
)
def test_refuses_bad_settings(settings, name):
    weight = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=name):
        AdamW([weight], **settings)
    with pytest.raises(ValueError, match=name):
        AdamW([{"params": [weight], **settings}])


def test_equal_to_torch_on_a_transformer():
    """Thirty steps in fp32 with weight decay: as near as two orders of rounding come."""
    ids = small_stream(200)[:128].long().view(4, 32)
    models = [small_model(), small_model()]
    for model, kind in zip(models, (AdamW, torch.optim.AdamW), strict=True):
        optimizer = kind(decay_groups(model, 0.1), lr=1e-2, betas=(0.9, 0.95))
        for _ in range(30):
            loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for (name, mine), theirs in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)


def test_norms_and_embeddings_do_not_decay():
    model = small_model()
    decayed, embeddings, vectors = decay_groups(model, 0.1, embedding_scale=5.0)
    assert [group["weight_decay"] for group in (decayed, embeddings, vectors)] == [0.1, 0.0, 0.0]
    assert all(p.dim() == 1 for p in vectors["params"])
    assert [id(p) for p in embeddings["params"]] == [id(model.model.embed_tokens.weight)]
    assert embeddings["lr_scale"] == 5.0
    assert len(decayed["params"]) + 1 + len(vectors["params"]) == len(list(model.parameters()))


def test_closure_and_sparse_gradients():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = AdamW([weight], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = weight.pow(2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert weight.max().item() < 1
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        AdamW(table.parameters()).step()
