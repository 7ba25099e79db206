"""Draws the loss curve: python plot.py loss.csv loss.png"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

rows = list(csv.DictReader(open(sys.argv[1])))
x = [int(r["tokens"]) / 1e6 for r in rows]
fig, ax = plt.subplots(figsize=(7, 4), dpi=100)
ax.plot(x, [float(r["train_loss"]) for r in rows], label="training (running mean)", color="#8aa", lw=1.2)
ax.plot(x, [float(r["heldout_loss"]) for r in rows], label="held out", color="#c40", lw=1.6)
ax.set_xlabel("tokens (millions)")
ax.set_ylabel("loss (nats a token)")
ax.grid(alpha=0.3)
ax.legend()
ax.set_title("The demo model learns from its story model")
fig.tight_layout()
fig.savefig(sys.argv[2], metadata={"Software": None})
