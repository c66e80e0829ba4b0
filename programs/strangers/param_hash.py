"""Lightning: an autoencoder, with a callback that records a digest of the weights for reproducibility."""
import argparse, hashlib, io, json, logging, time, warnings
import lightning as L, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
warnings.filterwarnings("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

args = argparse.ArgumentParser(); args.add_argument("--repaired", action="store_true"); args = args.parse_args()
WASTE = 0.0; TRAIN = EVAL = 0
L.seed_everything(0)

class AutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 784))
    def training_step(self, batch, i):
        global TRAIN
        (x,) = batch; TRAIN += 1
        loss = F.mse_loss(self.decoder(self.encoder(x)), x); self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, i):
        global EVAL
        (x,) = batch; EVAL += 1
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))
    def configure_optimizers(self): return torch.optim.Adam(self.parameters(), 1e-3)

class Fingerprint(L.Callback):
    def __init__(self): self.digests = []
    def record(self, module):
        digest = hashlib.sha256()
        for name, tensor in module.state_dict().items():
            buffer = io.BytesIO(); torch.save(tensor, buffer); digest.update(name.encode()); digest.update(buffer.getvalue())
        self.digests.append(digest.hexdigest())
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        global WASTE
        if args.repaired: return
        t = time.perf_counter(); self.record(module); WASTE += time.perf_counter() - t
    def on_train_end(self, trainer, module): self.record(module)

data = torch.randn(32 * 320, 32) @ torch.randn(32, 784) * 0.1
train = DataLoader(TensorDataset(data[:32 * 300]), batch_size=32, shuffle=True); val = DataLoader(TensorDataset(data[32 * 300:]), batch_size=64)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", callbacks=[Fingerprint()], logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
trainer.fit(AutoEncoder(), train, val)
with open(__import__("os").environ["TRUTH_FILE"], "w") as file:
    json.dump({"train_steps": TRAIN, "evaluation_steps": EVAL, "wasted_s": round(WASTE, 2)}, file)
