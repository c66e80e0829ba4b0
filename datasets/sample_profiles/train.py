"""Train a small network on pictures of an object store: ``python train.py STORE [WORKERS]``."""

import sys
from urllib.request import urlopen

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

STORE, WORKERS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0


class Pictures(Dataset):
    """Pictures of the store by their numbers."""

    def __len__(self):
        return 640

    def __getitem__(self, number):
        with urlopen(f"{STORE}/{number}") as picture:
            pixels = np.frombuffer(picture.read(), dtype=np.uint8).reshape(3, 32, 32)
        return torch.from_numpy(pixels / np.float32(255)), number % 10


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 96, 3), nn.ReLU(), nn.Conv2d(96, 128, 3), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(128, 160, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 10)),
)
optimizer = torch.optim.Adam(model.parameters())
loss_of = nn.CrossEntropyLoss()
workers = {"num_workers": WORKERS, "persistent_workers": True} if WORKERS else {}
pictures = DataLoader(Pictures(), batch_size=16, shuffle=True, **workers)

held_out = DataLoader(TensorDataset(torch.rand(160, 3, 32, 32), torch.arange(160) % 10), batch_size=16)

for epoch in range(4):
    model.train()
    for batch, labels in pictures:
        optimizer.zero_grad()
        loss = loss_of(model(batch), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(batch).argmax(dim=1) == labels).sum()) for batch, labels in held_out)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "checkpoint.pt")
