"""torch's update in a process of its own; `peers` says what goes in and out."""

from collections.abc import Callable

from peer import serve, torch_model


def prepare(job: dict) -> tuple[dict[str, str], Callable[[], int]]:
    """The model, the optimizer and the job's rows."""
    import torch
    import transformers

    model, device = torch_model(job)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    rows, length = job["rows"], job["length"]
    ids = torch.randint(0, model.config.vocab_size, (rows, length), device=device)
    adv = torch.where(torch.arange(rows, device=device) % 2 == 0, -1.0, 1.0)[:, None]
    trained = rows * (length - 1)

    def run() -> int:
        for start in range(0, rows, job["micro"]):
            micro = slice(start, start + job["micro"])
            logits = model(input_ids=ids[micro], use_cache=False).logits[:, :-1].float()
            nll = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), ids[micro, 1:].flatten(), reduction="none"
            )
            loss = (nll.view(-1, length - 1) * adv[micro]).sum() / trained
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        return rows * length

    return {"transformers": transformers.__version__, "torch": torch.__version__}, run


if __name__ == "__main__":
    serve(prepare)
