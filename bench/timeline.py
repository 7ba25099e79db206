#!/usr/bin/env python3
"""Draws what the ranges of a layer split compute when, from a profile: one lane for each range, one box for each part of a batch.

    bench/timeline.py record PROGRAM MODEL_DIR TRACE.json [--layers 3,3] [--prompt-tokens 896] [--clients 6] [--tokens 24]
    bench/timeline.py draw TRACE.json PICTURE.svg [--milliseconds 40]

`record` serves the model with its ranges as stages, each a process of this host, and records one prompt alone and then `clients`
sequences together. `draw` takes that file, or any of /stop_profile of such a server without pictures in its prompts: parts pass the ranges
in order, so the nth box of each lane is the same part, and has the same colour. Above the prompt, below some milliseconds of decoding."""
import argparse
import collections
import http.client
import json
import pathlib
import random
import shutil
import tempfile
import threading

from served import one_request, start
from svg import FAINT, GRID, Picture

COLORS = ["#1d4ed8", "#0e9f8e", "#d97706", "#be185d", "#64748b", "#7c3aed"]
HEAD = "#cbd5e1"
WIDTH, LEFT, RIGHT, LANE, GAP = 900, 120, 20, 34, 10
PROMPT_ROWS = 16  # a part of as many rows or more is a prompt's


def pipeline(layers):
    """The text of a pipeline whose ranges have so many layers."""
    lines, begin = ["name: timeline", "entry: generate", "stages:"], 0
    for i, count in enumerate(layers):
        to = f", layers_to: range-{i + 1}" if i + 1 < len(layers) else ""
        kind = "name: generate, worker: generate, next: detokenize, stream_to: detokenize" if i == 0 else f"name: range-{i}, worker: layers"
        lines.append(f"  - {{{kind}, layers: [{begin}, {begin + count}]{to}}}")
        begin += count
    return "\n".join([*lines, "  - {name: detokenize, worker: detokenize, terminal: true, can_accept_stream_before_payload: true}", ""])


def post(host, port, path):
    connection = http.client.HTTPConnection(host, port)
    connection.request("POST", path)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    return json.loads(body)


def record(options):
    generator = random.Random(1)
    vocabulary = json.loads((pathlib.Path(options.model) / "config.json").read_text())["vocab_size"]

    def prompt(tokens):
        return [generator.randrange(10, vocabulary) for _ in range(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "timeline.yaml"
        path.write_text(pipeline([int(count) for count in options.layers.split(",")]))
        process, host, port, _ = start(options.program, options.model, ["--pipeline", str(path), "--admin-without-key", "--profile-dir", folder,
                                                                        "--no-prefix-cache", "--threads", str(options.threads)])
        try:
            one_request(host, port, prompt(options.prompt_tokens), 4)  # warms up
            post(host, port, "/start_profile")
            one_request(host, port, prompt(options.prompt_tokens), 1)
            clients = [threading.Thread(target=one_request, args=(host, port, prompt(8), options.tokens)) for _ in range(options.clients)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            shutil.copy(post(host, port, "/stop_profile")["replies"][0]["message"], options.trace)
        finally:
            process.terminate()
            process.wait()


def lanes(trace):
    """[(name, boxes of layers, boxes of the head)] of the ranges, the first one first; a box is (begin ms, end ms, rows)."""
    names, boxes = {}, collections.defaultdict(lambda: collections.defaultdict(list))
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event.get("ph") == "X" and event["name"] in ("layers", "head and sample"):
            begin = event["ts"] / 1000
            boxes[event["pid"]][event["name"]].append((begin, begin + event["dur"] / 1000, event["args"]["rows"]))
    found = [(names[pid], sorted(of["layers"]), sorted(of["head and sample"])) for pid, of in boxes.items()]
    assert len(found) > 1, f"{len(found)} processes have layers in this trace; wanted two or more"
    assert len({len(layers) for _, layers, _ in found}) == 1, f"parts of the ranges: {[len(layers) for _, layers, _ in found]}; wanted the same number"
    return sorted(found, key=lambda lane: lane[1][0])


def draw_panel(picture, found, title, begin, end):
    picture.text(20, picture.top + 14, title, bold=True)
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    step = next(width for width in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if (end - begin) / width <= 12)
    top = picture.top + 26
    bottom = top + len(found) * (LANE + GAP)
    for tick in range(0, int(end - begin) + 1, step):
        picture.line(LEFT + tick * scale, top, LEFT + tick * scale, bottom, GRID)
        picture.text(LEFT + tick * scale, bottom + 14, f"{tick} ms" if tick == 0 else str(tick), size=11, anchor="middle", fill=FAINT)
    for name, layers, heads in found:
        picture.text(LEFT - 10, top + LANE / 2 + 5, name, anchor="end")
        for boxes, color, height in ((list(enumerate(layers)), None, LANE), (list(enumerate(heads)), HEAD, LANE)):
            for index, (at, until, rows) in boxes:
                if until <= begin or at >= end:
                    continue
                x, width = LEFT + (max(at, begin) - begin) * scale, (min(until, end) - max(at, begin)) * scale
                picture.rect(x, top, max(width, 0.6), height, color or COLORS[index % len(COLORS)])
                if not color and width > 9 + 6 * len(str(rows)):
                    picture.text(x + width / 2, top + LANE / 2 + 4, str(rows), size=11, anchor="middle", fill="#ffffff")
        top += LANE + GAP
    picture.top = bottom + 34


def draw(options):
    found = lanes(json.loads(pathlib.Path(options.trace).read_text()))
    rows, last = [box[2] for box in found[0][1]], found[-1][1]
    first = next((i for i, count in enumerate(rows) if count >= PROMPT_ROWS), None)
    assert first is not None, f"no part of {PROMPT_ROWS} rows or more in this trace"
    behind = next((i for i in range(first, len(rows)) if rows[i] < PROMPT_ROWS), len(rows))
    assert behind < len(rows), "nothing follows the prompt in this trace; wanted sequences that generate"
    picture = Picture(WIDTH, f"{len(found)} ranges of layers: what each one computes when",
                      "One box for each part of a batch, with its rows; a part has the same colour in all ranges. Grey: head and draws.")
    begin, end = found[0][1][first][0], last[behind - 1][1]
    draw_panel(picture, found, f"A prompt of {sum(rows[first:behind])} tokens, alone: its parts follow each other through the ranges", begin,
               end + (end - begin) * 0.02)
    decode = found[0][1][(behind + len(rows)) // 2][0]  # from the middle of what follows
    draw_panel(picture, found, "Sequences that generate, shared between micro-batches", decode, decode + options.milliseconds)
    pathlib.Path(options.picture).write_text(picture.document(picture.top))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record")
    for name in ("program", "model", "trace"):
        recorder.add_argument(name)
    recorder.add_argument("--layers", default="3,3", help="of each range")
    recorder.add_argument("--prompt-tokens", type=int, default=896)
    recorder.add_argument("--clients", type=int, default=6)
    recorder.add_argument("--tokens", type=int, default=24)
    recorder.add_argument("--threads", type=int, default=1)
    recorder.set_defaults(run=record)
    drawer = commands.add_parser("draw")
    drawer.add_argument("trace")
    drawer.add_argument("picture")
    drawer.add_argument("--milliseconds", type=float, default=40)
    drawer.set_defaults(run=draw)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
