"""What people would use instead of our engine, each behind a small adapter that runs in a process of its own.

Nothing here imports torch or the book's engine, so that an adapter can run in an environment that has the peer alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """module: under shared.inference.peers, with `load(model_dir, work_dir, threads, variant) -> Answer`. setting: how
    it is run, for the report. packages: what it takes, by pip's names. torch: it runs on torch's threads, as we do."""

    module: str
    variant: str
    setting: str
    packages: tuple[str, ...]
    torch: bool = False


STATIC = "static batches of 8, sorted by output length, with cache"
SLOTS = "continuous batching, 8 slots"
PAGED = "continuous batching, paged, 256 tokens a step"
CT2 = ("ctranslate2", "transformers")
LLAMA = ("llama-cpp-python", "gguf", "safetensors")
OPENVINO = ("openvino-genai", "optimum-intel", "nncf")

PEERS = {
    "transformers": Peer("transformers_peer", "float32", f"eager, sdpa, {STATIC}", ("transformers",), torch=True),
    "llama_cpp_f32": Peer("llama_cpp_peer", "F32", SLOTS, LLAMA),
    "llama_cpp_q8_0": Peer("llama_cpp_peer", "Q8_0", SLOTS, LLAMA),
    "llama_cpp_q4_1": Peer("llama_cpp_peer", "Q4_1", SLOTS, LLAMA),
    "openvino_fp32": Peer("openvino_peer", "fp32", PAGED, OPENVINO),
    "openvino_int8": Peer("openvino_peer", "int8", PAGED, OPENVINO),
    "ctranslate2_fp32": Peer("ctranslate2_peer", "float32", STATIC, CT2),
    "ctranslate2_int8": Peer("ctranslate2_peer", "int8", STATIC, CT2),
}
