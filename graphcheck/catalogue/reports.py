"""The public reports that the catalogue's codes were met in: address, title and codes, the cause first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """One public report of code in a CUDA graph going wrong.

    Args:
        url: the thread.
        title: what it is about, in one line.
        codes: the cause, then what else it shows.
    """

    url: str
    title: str
    codes: tuple[str, ...]


REPORTS = {
    "B001": Report(
        "https://github.com/huggingface/transformers/pull/45323",
        "continuous batching: max_seqlen missing from the graph key",
        ("GC302", "GC311"),
    ),
    "B003": Report(
        "https://github.com/Dao-AILab/flash-attention/issues/1164",
        "varlen attention: correctness depends on context length at capture",
        ("GC302", "GC301"),
    ),
    "B005": Report(
        "https://github.com/sgl-project/sglang/pull/21987",
        "draft-extend: uniform cu_seqlens at capture, ragged at replay",
        ("GC312",),
    ),
    "B007": Report(
        "https://github.com/vllm-project/vllm/pull/20301",
        "ahead-of-time scheduler may choose more splits than captured",
        ("GC304", "GC404"),
    ),
    "B009": Report(
        "https://github.com/alibaba/rtp-llm/pull/378",
        "planner must be called before each replay",
        ("GC305",),
    ),
    "B011": Report(
        "https://github.com/flashinfer-ai/flashinfer/issues/4002",
        "padded grid reads scheduler entries that were never written",
        ("GC704", "GC304"),
    ),
    "B013": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/11696",
        "kv lengths drift during warm-up",
        ("GC604",),
    ),
    "B015": Report(
        "https://github.com/vllm-project/vllm/pull/42444",
        "lazy scheduler metadata built in warm-up, so the planner is not captured",
        ("GC602",),
    ),
    "B017": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/5947",
        "dummy requests leave offset buffers unset",
        ("GC705", "GC604"),
    ),
    "B019": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/16319",
        "workspace grows while later, smaller batches are captured",
        ("GC404",),
    ),
    "B021": Report(
        "https://github.com/ROCm/aiter/pull/5393",
        "lru_cache workspace first created under capture",
        ("GC405",),
    ),
    "B023": Report(
        "https://github.com/pytorch/pytorch/issues/193402",
        "graphs on one stream share the BLAS workspace",
        ("GC411",),
    ),
    "B025": Report(
        "https://github.com/microsoft/onnxruntime/pull/32121",
        "pinned staging of pointer arrays released after the eager call",
        ("GC407", "GC306"),
    ),
    "B027": Report(
        "https://github.com/huggingface/candle/pull/3352",
        "dims and strides vectors dropped after capture",
        ("GC407", "GC402"),
    ),
    "B029": Report(
        "https://github.com/lightseekorg/tokenspeed/pull/376",
        "sampling buffer refilled before its copy ran",
        ("GC408",),
    ),
    "B031": Report(
        "https://github.com/pytorch/pytorch/pull/167508",
        "detecting write-after-read on pinned memory in captures",
        ("GC408",),
    ),
    "B033": Report(
        "https://github.com/sgl-project/sglang/pull/27140",
        "recurrent state buffers come back at another address",
        ("GC403",),
    ),
    "B035": Report(
        "https://github.com/vllm-project/vllm/issues/48941",
        "reload correctness rests on copy-back of every tensor",
        ("GC403", "GC406"),
    ),
    "B037": Report(
        "https://github.com/jcelerier/librediffusion/pull/14",
        "setters reallocate buffers the signature does not hash",
        ("GC403", "GC311"),
    ),
    "B039": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/17033",
        "capture-only sampling override survives in cached metadata",
        ("GC310",),
    ),
    "B041": Report(
        "https://github.com/vllm-project/vllm/pull/36587",
        "proposed early return while capturing",
        ("GC307", "GC601"),
    ),
    "B043": Report(
        "https://github.com/pytorch/pytorch/issues/114844",
        "attribute assigned in forward is not updated by replay",
        ("GC308",),
    ),
    "B045": Report(
        "https://github.com/NVIDIA/Megatron-LM/issues/1494",
        "load-balancing loss differs with graphs",
        ("GC308",),
    ),
    "B047": Report(
        "https://github.com/tracel-ai/burn/issues/5779",
        "captured training step: autodiff exact, optimisers not",
        ("GC309",),
    ),
    "B049": Report(
        "https://github.com/sgl-project/sglang/pull/23727",
        "two variants per batch size share one metadata slot",
        ("GC311",),
    ),
    "B051": Report(
        "https://github.com/ikawrakow/ik_llama.cpp/pull/2136",
        "copy source address exempt from the change check",
        ("GC311", "GC401"),
    ),
    "B053": Report(
        "https://github.com/nntrainer/nntrainer/pull/4317",
        "sliding-window regime decided on the host",
        ("GC303", "GC302"),
    ),
    "B055": Report(
        "https://github.com/vllm-project/vllm/issues/43810",
        "padding slot -1 writes the last cache slot",
        ("GC703",),
    ),
    "B057": Report(
        "https://github.com/vllm-project/vllm/pull/38436",
        "zero-length padding rows give NaN that spreads through quantisation tiles",
        ("GC704",),
    ),
    "B059": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/13151",
        "padding aliases parked requests; scatter uses a stale tail",
        ("GC702", "GC703"),
    ),
    "B061": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/18207",
        "optional position input not reset when absent",
        ("GC705",),
    ),
    "B063": Report(
        "https://github.com/vllm-project/vllm/pull/57785",
        "eager break leaves side-stream work in flight",
        ("GC202", "GC206"),
    ),
    "B065": Report(
        "https://github.com/pytorch/pytorch/issues/87894",
        "capture on the wrong current device records nothing",
        ("GC204",),
    ),
    "B067": Report(
        "https://github.com/sgl-project/sglang/pull/30460",
        "disposed storage leaves a null pointer; stream fan-out",
        ("GC410", "GC207"),
    ),
    "B069": Report(
        "https://github.com/pytorch/pytorch/issues/84614",
        "dropout under graphed callables ignores reseeding",
        ("GC801",),
    ),
    "B071": Report(
        "https://github.com/Dao-AILab/flash-attention/pull/166",
        "dropout state saved by host RNG calls",
        ("GC802",),
    ),
    "B073": Report(
        "https://github.com/pytorch/pytorch/issues/71631",
        "graphed callables under autocast give other weights",
        ("GC406",),
    ),
    "B075": Report(
        "https://github.com/huggingface/transformers/pull/30775",
        "lazily computed frequencies become a graph output",
        ("GC405", "GC501"),
    ),
    "B077": Report(
        "https://github.com/pytorch/pytorch/issues/148439",
        "stale output read with tree-managed graphs",
        ("GC501",),
    ),
    "B079": Report(
        "https://github.com/triton-lang/triton/issues/10596",
        "autotuner benchmarks inside a capture",
        ("GC601", "GC101"),
    ),
    "B081": Report(
        "https://github.com/pytorch/pytorch/pull/161037",
        "old graph destroyed by the collector during another capture",
        ("GC606",),
    ),
    "B083": Report(
        "https://github.com/openxla/xla/pull/33073",
        "communication setup called at first capture",
        ("GC904", "GC601"),
    ),
    "B085": Report(
        "https://github.com/cupy/cupy/issues/8318",
        "reduction result of the first captured graph never appears",
        ("GC504", "GC607"),
    ),
    "B087": Report(
        "https://github.com/deepseek-ai/DeepGEMM/issues/444",
        "grouped GEMM: tensor map frozen at capture",
        ("GC306", "GC302"),
    ),
    "B089": Report(
        "https://github.com/sgl-project/sglang/pull/14193",
        "piecewise capture skips buffer registration",
        ("GC901",),
    ),
    "B091": Report(
        "https://github.com/vllm-project/vllm/pull/39791",
        "ranks record different numbers of buffers",
        ("GC902", "GC901"),
    ),
    "B093": Report(
        "https://github.com/pytorch/pytorch/issues/115388",
        "process-group teardown hangs after capturing collectives",
        ("GC903",),
    ),
    "B095": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/17412",
        "graph variant chosen per rank",
        ("GC902",),
    ),
    "B097": Report(
        "https://github.com/vllm-project/vllm/issues/40038",
        "eager op between segments allocates, captured segment reads old addresses",
        ("GC401", "GC402"),
    ),
    "B099": Report(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/18242",
        "graph for a batch size skipped with one log line",
        ("GC608",),
    ),
    "B101": Report(
        "https://github.com/vllm-project/vllm/issues/55238",
        "replay changes greedy output on one architecture only",
        ("GC951",),
    ),
    "B103": Report(
        "https://github.com/alibaba/rtp-llm/pull/1259",
        "cumulative lengths reallocated in the no-realloc path",
        ("GC401",),
    ),
}


def reports_of(code: str) -> dict[str, Report]:
    """The reports that show a code, by number."""
    return {number: report for number, report in REPORTS.items() if code in report.codes}
