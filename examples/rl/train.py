#!/usr/bin/env python3
"""Reinforcement learning with a running server: it samples stories, PyTorch trains on them, and the new weights go back to it while
a client streams. README.md has the commands and what one sees.

The reward is the share of words that begin with a letter, each word counted once. The step is a clipped policy gradient (the
objective of PPO) with advantages normalised among the samples of one prompt, as in GRPO: no value model, no reference model.
"""
import argparse
import http.client
import json
import pathlib
import re
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
try:
    import torch  # noqa: E402
    import torch.nn.functional as F  # noqa: E402
except ImportError as missing:
    sys.exit(f"train.py: {missing}; wanted PyTorch, 1.13 or newer (examples/rl/README.md)")

from millrace_trainer import InferenceEndpoint, WeightSync  # noqa: E402
from model import load  # noqa: E402

PROMPTS = ("Once upon a time", "One day, a", "In a small village there was", "The little girl")
CLIP = 0.2
REQUEST_S = 120


class Server:
    """What the example asks of the server beside the sync."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def _request(self, path, body):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{path}: status {response.status}: {response.read(500).decode()}")
        return response

    def generate(self, prompt, **sampling):
        body = {"text": prompt, "sampling_params": sampling, "return_logprob": True}
        answer = json.loads(self._request("/generate", body).read())
        return answer if isinstance(answer, list) else [answer]

    def stream(self, prompt, **sampling):
        """The events of one answer."""
        for line in self._request("/generate", {"text": prompt, "sampling_params": sampling, "stream": True}):
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def tokens(self, prompt):
        return json.loads(self._request("/tokenize", {"prompt": prompt}).read())["tokens"]


class Client(threading.Thread):
    """Streams one story after another, and counts tokens by the weights that made them."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stop = server, threading.Event()
        self.stories, self.tokens, self.mixed, self.failures = 0, {}, [], []

    def run(self):
        while not self.stop.is_set():
            try:
                for event in self.server.stream(PROMPTS[0], temperature=0.7, max_new_tokens=600, ignore_eos=True):
                    last = event["meta_info"]
                spans = last["weight_versions"]
                if last["finish_reason"]["type"] != "length" or spans[-1]["end"] != 600:
                    self.failures.append(str(last["finish_reason"]))
            except (Exception, SystemExit) as error:  # noqa: BLE001: whatever a client meets
                self.failures.append(repr(error))
                continue
            self.stories += 1
            for span in spans:
                self.tokens[span["version"]] = self.tokens.get(span["version"], 0) + span["end"] - span["start"]
            if len(spans) > 1:
                self.mixed.append(spans)


def reward(text, letter):
    words = re.findall(r"[a-z']+", text.lower())
    return len({word for word in words if word.startswith(letter)}) / max(len(words), 1)


def sample(server, options):
    """A group of stories for each prompt: [(prompt's tokens, output's tokens, their log-probabilities, reward, advantage)]."""
    found = []
    for prompt, tokens in options.prompts.items():
        group = server.generate(prompt, temperature=1.0, top_p=1.0, top_k=-1, n=options.samples, max_new_tokens=options.tokens)
        rewards = torch.tensor([reward(answer["text"], options.letter) for answer in group])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for answer, value, advantage in zip(group, rewards.tolist(), advantages.tolist()):
            if answer["output_ids"]:
                logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
                found.append((tokens, answer["output_ids"], logprobs, value, advantage))
    return found


def step(model, optimizer, stories):
    """One step on all of them; the loss."""
    width = max(len(prompt) + len(output) for prompt, output, *_ in stories)
    ids, old, mask = torch.zeros(len(stories), width, dtype=torch.long), torch.zeros(len(stories), width), torch.zeros(len(stories), width)
    for row, (prompt, output, logprobs, _, _) in enumerate(stories):
        end = len(prompt) + len(output)
        ids[row, :end] = torch.tensor(prompt + output)
        old[row, len(prompt):end] = torch.tensor(logprobs)
        mask[row, len(prompt):end] = 1
    advantages = torch.tensor([story[-1] for story in stories])[:, None]
    with torch.autocast("cpu", torch.bfloat16):  # products only: weights and steps are float32
        logits = model(ids[:, :-1])
    logits = logits.float()
    new = -F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    ratio = (new - old[:, 1:]).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    loss = -(gain * mask[:, 1:]).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def train(options):
    torch.manual_seed(1)
    server = Server(options.host, options.port)
    options.prompts = {prompt: server.tokens(prompt) for prompt in PROMPTS}
    model = load(options.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
    greedy = {"temperature": 0, "max_new_tokens": 60}
    before = server.generate(PROMPTS[0], **greedy)[0]["text"]
    client = Client(server)
    client.start()
    mean = []
    with WeightSync([InferenceEndpoint(options.host, options.port, options.replicas)], buffer_size_mb=options.buffer_size_mb,
                    dtype="bfloat16") as sync:
        for number in range(1, options.steps + 1):
            begun = time.monotonic()
            stories = sample(server, options)
            sampled = time.monotonic()
            loss = step(model, optimizer, stories)
            mean.append(sum(story[3] for story in stories) / len(stories))
            if number % options.sync_every:
                continue
            trained = time.monotonic()
            result = sync.sync(model, weight_version=f"step-{number}")
            print(f"step {number}: reward {mean[-1]:.3f}, loss {loss:+.3f}, sample {sampled - begun:.2f} s, train {trained - sampled:.2f} s, "
                  f"sync {time.monotonic() - trained:.2f} s: {result.num_buckets} buckets, {result.total_bytes / 1e6:.1f} MB", flush=True)
    client.stop.set()
    client.join(REQUEST_S)
    answer = server.generate(PROMPTS[0], **greedy)[0]
    version = answer["meta_info"]["weight_version"]
    print(f"\nreward: {mean[0]:.3f} at first, {mean[-1]:.3f} at last")
    print(f"the client: {client.stories} stories, {len(client.failures)} failures {client.failures[:1]}; tokens by version: {client.tokens}")
    print(f"{len(client.mixed)} of its stories went on through a switch, such as {client.mixed[len(client.mixed) // 2] if client.mixed else None}")
    print(f"\nbefore: {PROMPTS[0]}{before}\n\nafter ({version}): {PROMPTS[0]}{answer['text']}")
    return 0 if not client.failures and version == f"step-{options.steps - options.steps % options.sync_every}" else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--replicas", type=int, default=1, help="the server's --dp")
    parser.add_argument("--model", default=ROOT / "models" / "demo", help="the folder that the server serves")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sync-every", type=int, default=5)
    parser.add_argument("--samples", type=int, default=8, help="stories for each prompt and step")
    parser.add_argument("--tokens", type=int, default=48, help="of a story")
    parser.add_argument("--letter", default="b")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--buffer-size-mb", type=float, default=2)
    return train(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
