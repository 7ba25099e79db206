#!/usr/bin/env python3
"""Text through a model that takes pictures, beside the same language model alone: both serve, and are asked in turns.

    bench/vision_text.py PROGRAM [--folder DIR] [--shape small] [--clients 1 4 16] [--rounds 5] [-- serve options]

Makes the Qwen3-VL directory of bench/vision.py, and one with the same text weights as a Qwen3 model; each serves in one process. Streamed
completions of random token ids, closed loop. Prints a Markdown table: rates and their ratio, and the processor time of the text model over
that of the other one, which other work on the machine changes less; medians, and the least and the largest of the ratios."""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import sys
import tempfile

from served import run_round, start
from vision import VOCABULARY, model_of, tensors_of, write_weights

PREFIX = "model.language_model."


def text_twin(folder, config):
    """The same language model, of the architecture Qwen3."""
    if (folder / "model.safetensors").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = {**config["text_config"], "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": config["text_config"]["rope_parameters"]["rope_theta"]}}
    (folder / "config.json").write_text(json.dumps(text))
    write_weights(folder, [("model." + name[len(PREFIX):], shape) for name, shape in tensors_of(config) if name.startswith(PREFIX)])
    return folder


def processor_seconds(pid):
    return sum(int(file.read_text().split()[0]) for file in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def spread(ratios):
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main():
    own, more = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "millrace-bench-vision")
    parser.add_argument("--shape", default="small")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(own)
    config, vision = model_of(args.folder, args.shape)
    text = text_twin(args.folder / f"{args.shape}-text", config)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(vision / name, text)
    servers = [start(args.program, str(folder), ["--placement", "single", *more]) for folder in (text, vision)]
    try:
        print("| clients | text model, tokens/s | model with pictures | ratio of rates | of processor time |\n|---|---|---|---|---|")
        for clients in args.clients:
            rates, times = [[], []], [[], []]
            for turn in range(args.rounds + 1):
                # Each one goes first in every other round, with the same prompts; the first round warms both up.
                for which in ((0, 1) if turn % 2 else (1, 0)):
                    process, host, port, _ = servers[which]
                    before = processor_seconds(process.pid)
                    rates[which].append(run_round(host, port, clients, args.prompt_tokens, args.tokens, VOCABULARY - 8, random.Random(turn))[0])
                    times[which].append(processor_seconds(process.pid) - before)
            of_rates, of_times = [b / a for a, b in zip(*rates)][1:], [a / b for a, b in zip(*times)][1:]
            alone, beside = (statistics.median(each[1:]) for each in rates)
            print(f"| {clients} | {alone:.0f} | {beside:.0f} | {spread(of_rates)} | {spread(of_times)} |", flush=True)
    finally:
        for process, *_ in servers:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
