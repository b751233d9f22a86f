"""Every GPU of every rank adds one to a sum; each rank writes what came out to its own volume."""

import os
import pathlib

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
total = torch.ones(1, device="cuda")
dist.all_reduce(total)
if os.environ["LOCAL_RANK"] == "0":
    pathlib.Path("/data/sum").write_text(f"{total.item():.0f}\n")
    print(f"{total.item():.0f} GPUs of {dist.get_world_size()} have answered")
dist.destroy_process_group()
