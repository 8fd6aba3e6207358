"""Training by several processes, each in a sandbox of its own: PyTorch, DistributedDataParallel over gloo.

dockless submit examples/distributed.toml      # from the directory above; runs each with MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
WANTED = torch.tensor([[2.0], [-3.0], [0.5]])


def main() -> None:
    dist.init_process_group("gloo", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    print(f"rank {rank} of {size}: the ranks are {total.item():g} together", flush=True)

    torch.manual_seed(0)  # the same model everywhere
    model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    torch.manual_seed(rank + 1)  # and data of one's own
    for _ in range(STEPS):
        data = torch.randn(32, 3)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), data @ WANTED)
        loss.backward()  # averages the gradients of all
        optimizer.step()

    own = model.module.weight.detach().flatten()
    all_of_them = [torch.zeros_like(own) for _ in range(size)]
    dist.all_gather(all_of_them, own)
    assert all(torch.equal(own, other) for other in all_of_them), "the models differ"
    print(f"rank {rank}: trained {[round(value, 1) for value in own.tolist()]}, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
