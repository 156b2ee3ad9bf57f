"""Documents with copies among them, and the files that hold them."""

import json
import random
from pathlib import Path


def corpus(n: int, seed: int = 0) -> list[str]:
    """Texts of 5 to 120 words, a third of them edited copies and some exact ones."""
    rng = random.Random(seed)
    texts: list[str] = []
    for _ in range(n):
        draw = rng.random()
        if texts and draw < 0.1:
            texts.append(rng.choice(texts))
        elif texts and draw < 0.4:
            words = rng.choice(texts).split()
            for _ in range(rng.randrange(4)):
                words[rng.randrange(len(words))] = f"new{rng.randrange(99)}"
            texts.append(" ".join(words))
        else:
            texts.append(" ".join(f"w{rng.randrange(5000)}" for _ in range(rng.randrange(5, 120))))
    return texts


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    return path


def ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]
