"""Draws the loss curve: python plot.py loss.csv loss.png"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

rows = list(csv.DictReader(open(sys.argv[1])))
fig, ax = plt.subplots(figsize=(7, 4), dpi=100)
# Training restarted from a checkpoint now and then (column leg): each leg is a line of its own.
legs = sorted({r.get("leg", "1") for r in rows})
for leg in legs:
    part = [r for r in rows if r.get("leg", "1") == leg]
    x = [int(r["tokens"]) / 1e6 for r in part]
    ax.plot(x, [float(r["train_loss"]) for r in part], color="#8aa", lw=1.2, label="training (running mean)" if leg == legs[0] else None)
    ax.plot(x, [float(r["heldout_loss"]) for r in part], color="#c40", lw=1.6, label="held out" if leg == legs[0] else None)
    if leg != legs[0]:
        ax.axvline(x[0], color="#ccc", lw=0.8, ls=":")
ax.set_xlabel("tokens (millions)")
ax.set_ylabel("loss (nats a token)")
ax.grid(alpha=0.3)
ax.legend()
ax.set_title("Millrace's demo model: loss over training")
fig.tight_layout()
fig.savefig(sys.argv[2], metadata={"Software": None})
