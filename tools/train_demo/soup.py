"""The mean of checkpoints that went on from one checkpoint, exported into DIR (which holds the tokenizer).

    python soup.py --model DIR CHECKPOINT...
"""

import argparse

import torch

import student


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", required=True)
    a.add_argument("checkpoints", nargs="+")
    a = a.parse_args()
    states = [torch.load(f)["model"] for f in a.checkpoints]
    model = student.Student()
    model.load_state_dict({k: sum(s[k] for s in states) / len(states) for k in states[0]})
    student.export(model, a.model)


if __name__ == "__main__":
    main()
