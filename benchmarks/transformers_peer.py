"""transformers' `generate` in a process of its own; `peers` says what goes in and out.

It has no slots that are refilled: each batch of `slots` sequences runs to its longest one, and only
the tokens that were asked for count.
"""

from collections.abc import Callable

from peer import serve, torch_model


def prepare(job: dict) -> tuple[dict[str, str], Callable[[], int]]:
    """The model with the job's batches."""
    import torch
    import transformers

    model, device = torch_model(job)
    model.eval()
    model.generation_config.eos_token_id = None  # or it would stop there

    batches = []
    sequences = [
        (ids, new)
        for ids, lengths in zip(job["prompts"], job["lengths"], strict=True)
        for new in lengths
    ]
    for i in range(0, len(sequences), job["slots"]):
        batch = sequences[i : i + job["slots"]]
        longest = max(len(ids) for ids, _ in batch)
        ids = [[0] * (longest - len(ids)) + ids for ids, _ in batch]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids, _ in batch]
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        inputs = {name: x.to(device) for name, x in inputs.items()}
        batches.append((inputs, longest, [new for _, new in batch]))

    @torch.inference_mode()
    def run() -> int:
        tokens = 0
        for inputs, before, lengths in batches:
            new = max(lengths)
            out = model.generate(
                **inputs,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=new,
                eos_token_id=None,
                pad_token_id=0,
                use_cache=True,
            )
            assert out.shape == (len(lengths), before + new), out.shape
            tokens += sum(lengths)
        if device == "cuda":
            torch.cuda.synchronize()
        return tokens

    return {"transformers": transformers.__version__, "torch": torch.__version__}, run


if __name__ == "__main__":
    serve(prepare)
