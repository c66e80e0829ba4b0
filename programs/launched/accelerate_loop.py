"""Train a small network in the loop of Accelerate's first page."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from truth import training

STEPS, BATCH, WIDTH = 60, 16, 256

torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
rows = torch.rand(STEPS * BATCH * accelerator.num_processes, WIDTH)
data = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=BATCH)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
with training(accelerator.process_index) as stepped:
    for x, y in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        stepped()
accelerator.print(f"loss {accelerator.gather(loss).mean().item():.4f}")
accelerator.end_training()
