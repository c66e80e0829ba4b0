"""Train a small network with PyTorch in one process."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from truth import training

STEPS, BATCH, WIDTH = 60, 64, 256

torch.manual_seed(0)
torch.set_num_threads(1)
rows = torch.rand(STEPS * BATCH, WIDTH)
data = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=BATCH, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
with training() as stepped:
    for x, y in data:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stepped()
print(f"loss {loss.item():.4f}")
