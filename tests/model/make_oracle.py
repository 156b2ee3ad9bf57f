"""What Hugging Face's transformers says of the real model, kept small so that the tests can ask without it.

Run from the repository root, with the [dev] extra installed: python -m tests.model.make_oracle
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.model import variants

HERE = Path(__file__).parent
LOGITS = HERE / "oracle_logits.npz"
TOKENS = HERE.parent / "data" / "oracle_tokens.json"
POSITIONS = 128
COLUMNS = range(17, 49152, 1543)  # 32 tokens all over the vocabulary

TEXT = """\
The harbour master keeps two clocks on her desk. One shows the time in town; the other counts down to high water, and it
is the second that she trusts. A loaded barge draws 2.35 metres, and over the bar at the river's mouth there are 1.9
at low tide, so nothing that earns its keep can leave before the flood. "People think a port is a place," she says. "It
isn't. It's a timetable with some water in it."

On the 14th of March 1987 a coaster called Brigid tried to save forty minutes. She was light, the wind was off the land,
and her captain had crossed the bar a hundred times. The keel touched twice, softly, and held at the third. By the time
the tide came back for her she had been the talk of the quay for six hours.
"""

TEXTS = [
    TEXT,
    "2024",
    "In 1999, 007 paid $1,234.56 (about 98.7%) for 3x10^8 of them.",
    "def f(x):\n\tif x > 0:\n        return {'a': [1, 2, 3]}\n\n\n    return None  # done\n",
    "I'm sure they'll say it's what we'd've done, wouldn't they?",
    "naïve café — “quoted” … ½ ± µ",
    "机器学习是什么？日本語もね。한국어",
    "Привет, мир! שלום مرحبا नमस्ते",
    "🙂👩‍👩‍👧‍👦 🇫🇷 e\u0301 \u200b\ufeff",
    "  leading,   inner   and trailing   ",
    "\n\n\t\r\n \x00\x04\x07\x1f\x7f",
    "",
    " ",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_end <|im_end|>|> <|endoftext|><|im_start|><|im_start|",
    "ALLCAPS snake_case camelCase kebab-case http://x.y/z?a=1&b=2#c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "١٢٣ ¹²³ Ⅻ ੩",
]

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "  2 + 2?  \n"}],
    [
        {"role": "user", "content": "Hallo"},
        {"role": "assistant", "content": "Guten Tag! 🙂"},
        {"role": "user", "content": "Was kostet das? 12,50 €?"},
    ],
    [{"role": "user", "content": ""}],
]


def transformers_logits(config: dict[str, Any]) -> np.ndarray:
    """What transformers makes of a small model of tests/model/variants.py."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key != "model_type"}
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings))
    with torch.no_grad():
        return variants.fill(theirs)(variants.ids()).logits.numpy()


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from shared.model.fetch import ensure_model

    logits_of = {name.replace(" ", "_"): transformers_logits(c) for name, c in variants.VARIANTS.items()}
    np.savez_compressed(variants.STORED, **{name: logits.astype(np.float32) for name, logits in logits_of.items()})
    print(f"{variants.STORED}: {variants.STORED.stat().st_size} bytes")

    folder = ensure_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer.encode(TEXT)[:POSITIONS]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]  # [positions, vocab]
    top, top_ids = logits.topk(8)
    np.savez_compressed(
        LOGITS,
        ids=np.array(ids, dtype=np.int32),
        top=top.numpy(),
        top_ids=top_ids.numpy().astype(np.int32),
        logsumexp=logits.logsumexp(-1).numpy(),
        columns=logits[:, list(COLUMNS)].numpy(),
    )
    chats = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in CHATS]
    tokens = {"texts": [tokenizer.encode(text) for text in TEXTS], "chats": chats}
    TOKENS.write_text(json.dumps(tokens) + "\n")
    print(f"{LOGITS}: {LOGITS.stat().st_size} bytes; {TOKENS}: {TOKENS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
