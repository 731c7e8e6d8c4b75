"""The public reports: number, address and title."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One public report: its address and what it is about, in one line."""

    url: str
    title: str


SOURCES = {
    "B001": Source(
        "https://github.com/huggingface/transformers/pull/45323",
        "continuous batching: max_seqlen missing from the graph key",
    ),
    "B003": Source(
        "https://github.com/Dao-AILab/flash-attention/issues/1164",
        "varlen attention: correctness depends on context length at capture",
    ),
    "B005": Source(
        "https://github.com/sgl-project/sglang/pull/21987",
        "draft-extend: uniform cu_seqlens at capture, ragged at replay",
    ),
    "B007": Source(
        "https://github.com/vllm-project/vllm/pull/20301",
        "ahead-of-time scheduler may choose more splits than captured",
    ),
    "B009": Source("https://github.com/alibaba/rtp-llm/pull/378", "planner must be called before each replay"),
    "B011": Source(
        "https://github.com/flashinfer-ai/flashinfer/issues/4002",
        "padded grid reads scheduler entries that were never written",
    ),
    "B013": Source("https://github.com/NVIDIA/TensorRT-LLM/pull/11696", "kv lengths drift during warm-up"),
    "B015": Source(
        "https://github.com/vllm-project/vllm/pull/42444",
        "lazy scheduler metadata built in warm-up, so the planner is not captured",
    ),
    "B017": Source("https://github.com/NVIDIA/TensorRT-LLM/pull/5947", "dummy requests leave offset buffers unset"),
    "B019": Source(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/16319", "workspace grows while later, smaller batches are captured"
    ),
    "B021": Source("https://github.com/ROCm/aiter/pull/5393", "lru_cache workspace first created under capture"),
    "B023": Source("https://github.com/pytorch/pytorch/issues/193402", "graphs on one stream share the BLAS workspace"),
    "B025": Source(
        "https://github.com/microsoft/onnxruntime/pull/32121",
        "pinned staging of pointer arrays released after the eager call",
    ),
    "B027": Source("https://github.com/huggingface/candle/pull/3352", "dims and strides vectors dropped after capture"),
    "B029": Source(
        "https://github.com/lightseekorg/tokenspeed/pull/376", "sampling buffer refilled before its copy ran"
    ),
    "B031": Source(
        "https://github.com/pytorch/pytorch/pull/167508", "detecting write-after-read on pinned memory in captures"
    ),
    "B033": Source(
        "https://github.com/sgl-project/sglang/pull/27140", "recurrent state buffers come back at another address"
    ),
    "B035": Source(
        "https://github.com/vllm-project/vllm/issues/48941", "reload correctness rests on copy-back of every tensor"
    ),
    "B037": Source(
        "https://github.com/jcelerier/librediffusion/pull/14", "setters reallocate buffers the signature does not hash"
    ),
    "B039": Source(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/17033",
        "capture-only sampling override survives in cached metadata",
    ),
    "B041": Source("https://github.com/vllm-project/vllm/pull/36587", "proposed early return while capturing"),
    "B043": Source(
        "https://github.com/pytorch/pytorch/issues/114844", "attribute assigned in forward is not updated by replay"
    ),
    "B045": Source("https://github.com/NVIDIA/Megatron-LM/issues/1494", "load-balancing loss differs with graphs"),
    "B047": Source(
        "https://github.com/tracel-ai/burn/issues/5779", "captured training step: autodiff exact, optimisers not"
    ),
    "B049": Source(
        "https://github.com/sgl-project/sglang/pull/23727", "two variants per batch size share one metadata slot"
    ),
    "B051": Source(
        "https://github.com/ikawrakow/ik_llama.cpp/pull/2136", "copy source address exempt from the change check"
    ),
    "B053": Source("https://github.com/nntrainer/nntrainer/pull/4317", "sliding-window regime decided on the host"),
    "B055": Source("https://github.com/vllm-project/vllm/issues/43810", "padding slot -1 writes the last cache slot"),
    "B057": Source(
        "https://github.com/vllm-project/vllm/pull/38436",
        "zero-length padding rows give NaN that spreads through quantisation tiles",
    ),
    "B059": Source(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/13151",
        "padding aliases parked requests; scatter uses a stale tail",
    ),
    "B061": Source(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/18207", "optional position input not reset when absent"
    ),
    "B063": Source("https://github.com/vllm-project/vllm/pull/57785", "eager break leaves side-stream work in flight"),
    "B065": Source(
        "https://github.com/pytorch/pytorch/issues/87894", "capture on the wrong current device records nothing"
    ),
    "B067": Source(
        "https://github.com/sgl-project/sglang/pull/30460", "disposed storage leaves a null pointer; stream fan-out"
    ),
    "B069": Source(
        "https://github.com/pytorch/pytorch/issues/84614", "dropout under graphed callables ignores reseeding"
    ),
    "B071": Source("https://github.com/Dao-AILab/flash-attention/pull/166", "dropout state saved by host RNG calls"),
    "B073": Source(
        "https://github.com/pytorch/pytorch/issues/71631", "graphed callables under autocast give other weights"
    ),
    "B075": Source(
        "https://github.com/huggingface/transformers/pull/30775", "lazily computed frequencies become a graph output"
    ),
    "B077": Source("https://github.com/pytorch/pytorch/issues/148439", "stale output read with tree-managed graphs"),
    "B079": Source("https://github.com/triton-lang/triton/issues/10596", "autotuner benchmarks inside a capture"),
    "B081": Source(
        "https://github.com/pytorch/pytorch/pull/161037", "old graph destroyed by the collector during another capture"
    ),
    "B083": Source("https://github.com/openxla/xla/pull/33073", "communication setup called at first capture"),
    "B085": Source(
        "https://github.com/cupy/cupy/issues/8318", "reduction result of the first captured graph never appears"
    ),
    "B087": Source("https://github.com/deepseek-ai/DeepGEMM/issues/444", "grouped GEMM: tensor map frozen at capture"),
    "B089": Source("https://github.com/sgl-project/sglang/pull/14193", "piecewise capture skips buffer registration"),
    "B091": Source("https://github.com/vllm-project/vllm/pull/39791", "ranks record different numbers of buffers"),
    "B093": Source(
        "https://github.com/pytorch/pytorch/issues/115388", "process-group teardown hangs after capturing collectives"
    ),
    "B095": Source("https://github.com/NVIDIA/TensorRT-LLM/pull/17412", "graph variant chosen per rank"),
    "B097": Source(
        "https://github.com/vllm-project/vllm/issues/40038",
        "eager op between segments allocates, captured segment reads old addresses",
    ),
    "B099": Source(
        "https://github.com/NVIDIA/TensorRT-LLM/pull/18242", "graph for a batch size skipped with one log line"
    ),
    "B101": Source(
        "https://github.com/vllm-project/vllm/issues/55238", "replay changes greedy output on one architecture only"
    ),
    "B103": Source(
        "https://github.com/alibaba/rtp-llm/pull/1259", "cumulative lengths reallocated in the no-realloc path"
    ),
}
