#!/usr/bin/env python3
"""Draws which stage of a spoken answer works when, from a profile: one lane for each stage, and one for what the client got.

    bench/speech_timeline.py record PROGRAM TRACE.json [--shape omni] [--tokens 12] [--frames 24] [-- serve options]
    bench/speech_timeline.py draw TRACE.json PICTURE.svg [--first-ms 1500]

`record` serves a model of bench/speech_model.py, each stage a process of this host, and records one answer; the times at which the client got
text and sound are added to the file of /stop_profile, under "client". Above the whole answer, below its beginning."""
import argparse
import collections
import json
import pathlib
import tempfile

from speech import Speaker, words
from speech_model import SHAPES, model_of
from served import start
from svg import FAINT, GRID, Picture
from timeline import post

WIDTH, LEFT, RIGHT, LANE, GAP = 900, 110, 20, 30, 10
LAYERS, HEAD, DECODE = "#1d4ed8", "#cbd5e1", "#0e9f8e"
TEXT, SOUND = "#64748b", "#d97706"
PROMPT = "#7c3aed"
STAGES = {"scheduler": "thinker", "talker": "talker", "vocoder": "vocoder"}
PROMPT_ROWS = 2  # a batch of as many rows or more is a prompt's


def record(options):
    _, model = model_of(options.folder, options.shape)
    with tempfile.TemporaryDirectory() as folder:
        process, host, port, _ = start(options.program, str(model), ["--admin-without-key", "--profile-dir", folder, *options.more])
        try:
            server = Speaker(host, port)
            server.answer(words(16, 0), 4, 9)  # warms up
            post(host, port, "/start_profile")
            events, _ = server.events(words(options.prompt, 1), options.tokens, options.frames)
            path = post(host, port, "/stop_profile")["replies"][0]["message"]
            trace = json.loads(pathlib.Path(path).read_text())
        finally:
            process.terminate()
            process.wait()
    trace["client"] = [(at * 1e6, kind) for kind, at in events]
    pathlib.Path(options.trace).write_text(json.dumps(trace))


def lanes(trace):
    """{stage: [(begin ms, end ms, kind, number)]}, by the request's beginning."""
    names, origin = {}, trace["client"][0][0]
    for event in trace["traceEvents"]:
        if event.get("ph") == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
    out = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or event["name"] not in ("layers", "head and sample", "decode"):
            continue
        stage = next((lane for name, lane in STAGES.items() if name in names.get(event["pid"], "")), None)
        if stage is not None:
            begin = (event["ts"] - origin) / 1000
            number = event["args"].get("frames" if event["name"] == "decode" else "rows", 0)
            out[stage].append((begin, begin + event["dur"] / 1000, event["name"], number))
    missing = set(STAGES.values()) - set(out)
    assert not missing, f"no work of {sorted(missing)} in this trace"
    out["client"] = [((at - origin) / 1000, (at - origin) / 1000, kind, 0) for at, kind in trace["client"][1:]]
    return out


def color_of(kind, number):
    return {"layers": PROMPT if number >= PROMPT_ROWS else LAYERS, "head and sample": HEAD, "decode": DECODE, "text": TEXT, "sound": SOUND}[kind]


def panel(picture, found, title, end):
    picture.text(20, picture.top + 14, title, bold=True)
    scale, top = (WIDTH - LEFT - RIGHT) / end, picture.top + 26
    step = next(width for width in (50, 100, 200, 500, 1000, 2000, 5000, 10000) if end / width <= 12)
    bottom = top + 4 * (LANE + GAP)
    for tick in range(0, int(end) + 1, step):
        picture.line(LEFT + tick * scale, top, LEFT + tick * scale, bottom, GRID)
        picture.text(LEFT + tick * scale, bottom + 14, "0 ms" if tick == 0 else str(tick), size=11, anchor="middle", fill=FAINT)
    for lane in ("thinker", "talker", "vocoder", "client"):
        picture.text(LEFT - 10, top + LANE / 2 + 5, lane, anchor="end")
        for begin, until, kind, number in sorted(found[lane]):
            if begin >= end:
                continue
            x, width = LEFT + begin * scale, (min(until, end) - begin) * scale
            half = LANE / 2 if kind in ("text", "sound") else LANE
            picture.rect(x, top + (LANE / 2 if kind == "sound" else 0), max(width, 1.2 if lane == "client" else 0.6), half, color_of(kind, number))
            if kind == "decode" and width > 8 + 6 * len(str(number)):
                picture.text(x + width / 2, top + LANE / 2 + 4, str(number), size=11, anchor="middle", fill="#ffffff")
        top += LANE + GAP
    picture.top = bottom + 34


def draw(options):
    found = lanes(json.loads(pathlib.Path(options.trace).read_text()))
    last = max(box[1] for boxes in found.values() for box in boxes)
    picture = Picture(WIDTH, "One spoken answer: which stage works when",
                      "Violet: prompts. Blue: layers of a token or a frame. Grey: heads, draws, the other codes of a frame. Green: frames to sound.")
    panel(picture, found, "From the request to its last sample. The client: text above, sound below", last * 1.01)
    panel(picture, found, "Its beginning", options.first_ms)
    pathlib.Path(options.picture).write_text(picture.document(picture.top))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("program")
    recorder.add_argument("trace")
    recorder.add_argument("--shape", choices=list(SHAPES), default="omni")
    recorder.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "millrace-bench-speech")
    for name, length in (("prompt", 40), ("tokens", 12), ("frames", 24)):
        recorder.add_argument(f"--{name}", type=int, default=length)
    recorder.set_defaults(run=record)
    drawer = commands.add_parser("draw")
    drawer.add_argument("trace")
    drawer.add_argument("picture")
    drawer.add_argument("--first-ms", type=float, default=1500)
    drawer.set_defaults(run=draw)
    options, more = parser.parse_known_args()
    options.more = [each for each in more if each != "--"]
    options.run(options)


if __name__ == "__main__":
    main()
