"""What a model holds and what a token costs, from its config alone: parameters, and floating-point operations."""

from shared.model.config import ModelConfig


def parameters(config: ModelConfig) -> dict[str, int]:
    """How many numbers the model stores, by part; the sum is what counting the tensors gives.

    A tied model's head is its embedding, stored once: its "head" is 0.
    """
    dim, head_dim, layers = config.hidden_size, config.head_dim, config.num_hidden_layers
    width, kv_width = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    biases = config.attention_bias * (width + 2 * kv_width) + config.attention_output_bias * dim
    table = config.vocab_size * dim
    return {
        "embedding": table,
        "attention": layers * (2 * dim * width + 2 * dim * kv_width + biases),  # q and o; k and v
        "mlp": layers * 3 * dim * config.intermediate_size,  # gate, up, down
        "norms": layers * (2 * dim + config.qk_norm * 2 * head_dim) + dim,
        "head": 0 if config.tie_word_embeddings else table,
    }


def flops_per_token(config: ModelConfig, context: int) -> int:
    """Floating-point operations of the matrix products that compute one token's logits, as `FlopCounterMode` counts.

    context: how many tokens its queries are compared with, itself among them. Each number of a matrix costs two for
    each token, a product and a sum. Norms, rope, softmax, silu and biases are left out, as they are there.

    By hand, for dim 4, one layer, 3 heads of 2, 1 key head, hidden 8, vocabulary 13, context 5: q and o are 6 by 4, k
    and v 2 by 4: 64; gate, up, down: 96; the head: 52; scores and weighted mean: 2 * 5 * 6 = 60. Twice 272 is 544.
    """
    # exercise 5.9: count the multiplications, layer by layer, then the head, and double the sum
    #   looking up a row of the embedding multiplies nothing; the head multiplies, tied or not; scores are computed by
    #   every query head, with `context` keys, and so is the mean of the values
    dim, head_dim = config.hidden_size, config.head_dim
    width, kv_width = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    projections = 2 * dim * width + 2 * dim * kv_width  # q and o; k and v
    scores = 2 * context * width  # q . k, then weights . v
    mlp = 3 * dim * config.intermediate_size  # gate, up, down
    return 2 * (config.num_hidden_layers * (projections + scores + mlp) + config.vocab_size * dim)
    # end
