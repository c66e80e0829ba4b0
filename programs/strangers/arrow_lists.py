"""Image classification from a Hugging Face dataset in a plain PyTorch loop."""
import argparse, json, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from datasets import Array3D, ClassLabel, Dataset, Features
from torch.utils.data import DataLoader

args = argparse.ArgumentParser(); args.add_argument("--repaired", action="store_true"); args = args.parse_args()
WASTE = 0.0; TRAIN = EVAL = 0
torch.manual_seed(0); rng = np.random.default_rng(0)
labels = rng.integers(0, 10, 3000); protos = rng.integers(0, 255, (10, 3, 32, 32))
pixels = np.clip(protos[labels] + rng.normal(0, 60, (3000, 3, 32, 32)), 0, 255).astype("uint8")
features = Features({"pixels": Array3D((3, 32, 32), "uint8"), "label": ClassLabel(10)})
ds = Dataset.from_dict({"pixels": list(pixels), "label": labels.tolist()}, features=features).train_test_split(0.1, seed=0)
if args.repaired:  # decode once
    class Decoded(torch.utils.data.Dataset):
        def __init__(self, rows): rows = rows.with_format("numpy")[:]; self.x, self.y = torch.from_numpy(np.stack(rows["pixels"])), torch.from_numpy(np.asarray(rows["label"]))
        def __len__(self): return len(self.x)
        def __getitem__(self, i): return {"pixels": self.x[i], "label": self.y[i]}
    ds = {k: Decoded(v) for k, v in ds.items()}

def collate(rows):
    global WASTE
    t = time.perf_counter()
    if args.repaired:
        x, y = torch.stack([r["pixels"] for r in rows]).float() / 255, torch.stack([r["label"] for r in rows])
    else:
        x = torch.tensor([r["pixels"] for r in rows], dtype=torch.float32) / 255
        y = torch.tensor([r["label"] for r in rows])
    WASTE += time.perf_counter() - t
    return x, y

class Timed(torch.utils.data.Dataset):  # own timer around the rows
    def __init__(self, ds): self.ds = ds
    def __len__(self): return len(self.ds)
    def __getitem__(self, i):
        global WASTE
        t = time.perf_counter(); row = self.ds[i]; WASTE += time.perf_counter() - t
        return row

train_loader = DataLoader(Timed(ds["train"]), batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)
test_loader = DataLoader(Timed(ds["test"]), batch_size=100, collate_fn=collate)
model = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(48, 96, 3, padding=1), nn.ReLU(),
                      nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96 * 64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad(); TRAIN += 1
    model.eval(); right = 0
    with torch.no_grad():
        for x, y in test_loader: right += (model(x).argmax(1) == y).sum().item(); EVAL += 1
    print("epoch", epoch, loss.item(), right / len(ds["test"]))
with open(__import__("os").environ["TRUTH_FILE"], "w") as file:
    json.dump({"train_steps": TRAIN, "evaluation_steps": EVAL, "wasted_s": round(WASTE, 2)}, file)
