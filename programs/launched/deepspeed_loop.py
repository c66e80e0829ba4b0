"""Train a small network with the engine of DeepSpeed, on processors."""

import deepspeed
import torch
from torch.utils.data import TensorDataset
from truth import training

STEPS, BATCH, WIDTH = 60, 16, 256

torch.manual_seed(0)
torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
ranks = torch.distributed.get_world_size()
rows = torch.rand(STEPS * BATCH * ranks, WIDTH)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
config = {"train_micro_batch_size_per_gpu": BATCH, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
engine, _, data, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    training_data=TensorDataset(rows, rows.sum(1, keepdim=True)),
    config=config,
)
with training(engine.global_rank) as stepped:
    for x, y in data:
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        stepped()
print(f"rank {engine.global_rank} of {ranks}: loss {loss.item():.4f}\n", end="", flush=True)
torch.distributed.destroy_process_group()
