"""Train LeNet-5 by Adam in plain PyTorch; print the test scores as JSON. `experiments.optimisers.run` changes lines.

    python experiments/optimisers/plain.py mnist.npz 3 0

The arguments are an .npz file with arrays x, y, test_x and test_y, the number of epochs, and the seed.
"""

import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

file, epochs, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(seed)
arrays = np.load(file)
x, test_x = (torch.tensor(arrays[name]).float() / 255 for name in ("x", "test_x"))
x, test_x = ((t - x.mean()) / x.std() for t in (x, test_x))
y, test_y = (torch.tensor(arrays[name]).long() for name in ("y", "test_y"))
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(x.shape[1], 6, 5, padding=(32 - x.shape[2]) // 2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(6, 16, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(400, 120),
    nn.ReLU(),
    nn.Linear(120, 84),
    nn.ReLU(),
    nn.Linear(84, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-6, epochs * len(loader))
begin = time.process_time()
for _ in range(epochs):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
seconds = time.process_time() - begin

with torch.no_grad():
    p = model(test_x).softmax(-1)
confidence, predicted = p.max(-1)
right = (predicted == test_y).float()
nll = F.nll_loss(p.clamp_min(1e-12).log(), test_y)
bins = (confidence * 15).ceil().clamp(1, 15)
gaps = [(right - confidence)[bins == b].sum().abs() for b in range(1, 16)]
scores = {"accuracy": right.mean(), "nll": nll, "ece": sum(gaps) / len(right), "seconds": seconds}
print(json.dumps({name: round(float(value), 5) for name, value in scores.items()}))
