"""OpenVINO GenAI: its continuous batching pipeline, on a model exported by optimum-intel; int8 weights by nncf."""

from collections.abc import Callable
from pathlib import Path

from shared.inference.peers.converted import converted
from shared.inference.peers.rates import Answer, Told
from shared.inference.peers.transformers_peer import without_torchvision
from shared.measure.trace import Trace

CACHE_GB = 2


def load(model_dir: Path, work_dir: Path, threads: int, variant: str, say: Callable[[str], None]) -> Answer:
    """Export the model once and load it. variant: "fp32" or "int8". Raises ImportError where a package is missing."""
    import numpy as np
    import openvino
    import openvino_genai

    folder = converted(work_dir / "openvino-fp32", lambda path: export(model_dir, path), say)
    if variant == "int8":
        whole = folder
        folder = converted(work_dir / "openvino-int8", lambda path: compress(whole, path), say)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_batched_tokens = 256
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)

    def answer(requests: Trace, told: Told) -> list[list[int]]:
        handles = []
        for i, request in enumerate(requests):
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = request.max_new_tokens, True, False
            ids = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
            handles.append(pipeline.add_request(i, ids, config))
        answers: list[list[int]] = [[] for _ in requests]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for tokens, handle in zip(answers, handles, strict=True):
                if handle.can_read():
                    new = [token for output in handle.read().values() for token in output.generated_ids]
                    tokens += new
                    told(len(new))
        return answers

    return answer


def export(model_dir: Path, folder: Path) -> None:
    """Write the model as OpenVINO's own files, in float32, with a cache as inputs and outputs."""
    without_torchvision()
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(str(model_dir), output=folder, task="text-generation-with-past", ov_config=OVConfig(dtype="fp32"))


def compress(source: Path, folder: Path) -> None:
    """Weights to int8, one scale and zero point a row: what `optimum-cli export openvino --weight-format int8` does."""
    import nncf
    import openvino

    model = openvino.Core().read_model(source / "openvino_model.xml")
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    folder.mkdir(parents=True)
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    for file in source.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
