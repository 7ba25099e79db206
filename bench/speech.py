#!/usr/bin/env python3
"""Measures spoken answers of a served Qwen3-Omni: a whole answer, its first sound, the stages beside each other, sounds together.

    bench/speech.py PROGRAM [--shape omni|small] [--measures peer first long company text real-time hour] [--rounds 3] [--folder DIR]
                    [--peer "COMMAND THAT RUNS PYTHON"] [-- serve options]

Makes directories with random weights (bench/speech_model.py has the shapes; `real-time` has one of its own), and prints a row of a Markdown
table for each measure: medians over the rounds. Lengths are fixed: neither text nor speech ends by itself.

    peer       text and speech of one answer, beside transformers, in turns; --peer "python3" or what runs one that has it
    first      a request to its first sound, over the sum of its parts, each measured alone: the thinker's prompt, the talker's prompt and
               frame, the vocoder's frame
    long       a long answer, over the time that its busiest stage computed; one thread a stage
    company    frames a second of the talker, 8 speeches together over one after the other: by its own time (a core of its own), and of whole speeches
    text       tokens a second of the text with speech over without; the thinker has a core of its own, talker and vocoder share the other
    real-time  seconds for a second of sound with 1 and 2 threads a stage, and processor seconds of the stages
    hour       anonymous memory of each process while a long speech is streamed, of a tiny model: at its first tenth, its middle, its end"""
import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import tempfile
import time

from served import cpu_seconds, start
from speech_model import MEDIA_IDS, model_of
from vision import Server

WORDS = ["cat", "dog", "sun", "red", "tree", "house", "water", "bird"]
FRAME_SECONDS = 0.08
COUNTERS = {"thinker": "millrace:forward_execution_seconds_total", "talker": "millrace:talker_compute_seconds_total",
            "vocoder": "millrace:vocoder_compute_seconds_total"}
PEER_SCRIPT = pathlib.Path(__file__).resolve().parent / "speech_peer.py"

# Seconds from the request; of the text: to its first and last delta.
Answer = collections.namedtuple("Answer", "first_text last_text first_sound whole prompt_tokens")


def words(count, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


class Speaker(Server):
    def post(self, path, body):
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        return connection, response

    def events(self, prompt, tokens, frames=0, seed=1):
        """A chat whose text has so many tokens; spoken, with so many frames, where that is not 0. ([("asked", "text" or "sound", seconds of the
        monotonic clock)], usage)"""
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "seed": seed, "stream_options": {"include_usage": True}}
        if frames:
            body |= {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "pcm16"}, "talker_max_new_tokens": frames}
        events, usage = [("asked", time.monotonic())], {}
        connection, response = self.post("/v1/chat/completions", body)
        with contextlib.closing(connection):
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event, now = json.loads(line[6:]), time.monotonic()
                if "error" in event:
                    raise SystemExit(event["error"]["message"])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    events += [("text", now)] if choice["delta"].get("content") else []
                    events += [("sound", now)] if (choice["delta"].get("audio") or {}).get("data") else []
        made = (usage["completion_tokens"], usage.get("completion_tokens_details", {}).get("audio_tokens", 0))
        if made != (tokens, frames):
            raise SystemExit(f"an answer of {made[0]} tokens and {made[1]} frames; wanted {tokens} and {frames}")
        return events, usage

    def answer(self, prompt, tokens, frames=0, seed=1):
        events, usage = self.events(prompt, tokens, frames, seed)
        began, ended = events[0][1], time.monotonic()
        texts, sounds = ([at - began for kind, at in events if kind == wanted] for wanted in ("text", "sound"))
        return Answer(texts[0] if texts else None, texts[-1] if texts else None, sounds[0] if sounds else None, ended - began,
                      usage["prompt_tokens"])

    def speech(self, text, frames, instructions="", seed=1):
        """Seconds of a speech of so many frames."""
        began = time.monotonic()
        connection, response = self.post("/v1/audio/speech", {"input": text, "instructions": instructions, "voice": "ethan", "response_format": "pcm",
                                                              "talker_max_new_tokens": frames, "seed": seed})
        with contextlib.closing(connection):
            response.read()
        return time.monotonic() - began


@contextlib.contextmanager
def serving(args, shape, *more):
    """(server, {stage: pid}), warm."""
    _, folder = model_of(args.folder, shape)
    process, host, port, _ = start(args.program, str(folder), [*more, *args.more])
    try:
        server = Speaker(host, port)
        server.answer(words(16, 0), 4, 9)
        yield server, stages_of(process.pid)
    finally:
        process.terminate()
        process.wait()


def stages_of(pid):
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
            arguments = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if len(arguments) > 2 and arguments[1] == b"stage":
                found[arguments[2].decode()] = int(child)
    return found


def pin(stages, processors):
    """processors: {stage: number}; all threads of the stage's process."""
    for stage, processor in processors.items():
        for task in os.listdir(f"/proc/{stages[stage]}/task"):
            os.sched_setaffinity(int(task), {processor})


def compute_of(gained):
    return {stage: gained.get(name, 0.0) for stage, name in COUNTERS.items()}


def span(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def prompt_ids(config, length):
    """A turn of the user and the beginning of the assistant's, as many ids as the chat had."""
    begin, end = config["im_start_token_id"], config["im_end_token_id"]
    head, tail = [begin, config["user_token_id"], 10], [end, 10, begin, config["assistant_token_id"], 10]
    return head + random.Random(length).choices(range(10, min(MEDIA_IDS.values()) - 100), k=length - len(head) - len(tail)) + tail


def peer_row(args):
    config, folder = model_of(args.folder, args.shape)
    tokens, frames = args.tokens, args.frames
    command = [*shlex.split(args.peer), str(PEER_SCRIPT), str(folder), str(args.threads)]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read():
        """transformers writes warnings between."""
        for line in peer.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit("the peer ended")

    def theirs(**job):
        peer.stdin.write(json.dumps(job) + "\n")
        peer.stdin.flush()
        return read()
    ours, others = [], []
    try:
        read()
        with serving(args, args.shape, "--threads", str(args.threads)) as (server, _):
            theirs(ids=prompt_ids(config, 32), tokens=2, frames=2)
            for turn in range(args.rounds):
                made = server.answer(words(40, turn + 1), tokens, frames)
                found = theirs(ids=prompt_ids(config, made.prompt_tokens), tokens=tokens, frames=frames)
                if found["frames"] != frames:
                    raise SystemExit(f"transformers made {found['frames']} frames; wanted {frames}")
                ours.append(made.whole)
                others.append(found["seconds"])
    finally:
        peer.stdin.close()
        peer.wait()
    ratio = span([b / a for a, b in zip(ours, others)], 1)
    return (f"an answer of {tokens} tokens and {frames} frames ({frames * FRAME_SECONDS:.1f} s of sound), {args.threads} threads: Millrace, transformers",
            f"{statistics.median(ours):.1f} s, {statistics.median(others):.1f} s", f"{ratio} times as fast")


def first_row(args):
    ratios, parts, firsts = [], [], []
    with serving(args, args.shape, "--threads", str(args.threads)) as (server, _):
        for turn in range(args.rounds):
            prompt = words(64, 100 + turn)
            _, thought = server.measured(lambda: server.answer(words(64, 200 + turn), 1))
            _, spoken = server.measured(lambda: server.speech("cat", 1, prompt))
            answer = server.answer(prompt, 8, 8)
            alone = compute_of(thought)["thinker"], compute_of(spoken)["talker"], compute_of(spoken)["vocoder"]
            parts.append(alone)
            firsts.append(answer.first_sound)
            ratios.append(answer.first_sound / sum(alone))
    each = " + ".join(f"{1000 * statistics.median(column):.0f}" for column in zip(*parts))
    return (f"first sound over its parts alone (thinker, talker, vocoder), {args.threads} threads",
            f"{1000 * statistics.median(firsts):.0f} / ({each}) ms", span(ratios))


def long_row(args):
    ratios, seen = [], []
    with serving(args, args.shape, "--threads", "1") as (server, _):
        for turn in range(args.rounds):
            answer, gained = server.measured(lambda: server.answer(words(16, 300 + turn), args.long // 3, args.long, seed=turn))
            compute = compute_of(gained)
            ratios.append(answer.whole / max(compute.values()))
            seen.append((answer.whole, *compute.values()))
    whole, *each = (statistics.median(column) for column in zip(*seen))
    return (f"an answer of {args.long // 3} tokens and {args.long} frames over its busiest stage (thinker, talker, vocoder), one thread each",
            f"{whole:.1f} / ({', '.join(f'{one:.1f}' for one in each)}) s", span(ratios))


def company_row(args):
    own, outside, rates = [], [], []
    with serving(args, args.shape, "--threads", "1") as (server, stages):
        pin(stages, {"scheduler": 1, "detokenizer": 1, "talker": 0, "vocoder": 1})
        text = words(12, 1)

        def together(count, seed):
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda i: server.speech(text, args.company, seed=seed + i), range(8)))
        for turn in range(args.rounds):
            found = []
            for count in (1, 8):
                began = time.monotonic()
                _, gained = server.measured(lambda count=count: together(count, 10 * turn))
                found.append((8 * args.company / compute_of(gained)["talker"], time.monotonic() - began))
            own.append(found[1][0] / found[0][0])
            outside.append(found[0][1] / found[1][1])
            rates.append((found[0][0], found[1][0]))
    alone, company = (statistics.median(column) for column in zip(*rates))
    return (f"frames/s of the talker, 8 speeches of {args.company} frames together over one after the other, one thread; whole speeches",
            f"{company:.1f} / {alone:.1f}", f"{span(own)}; {span(outside)}")


def text_row(args):
    ratios, rates = [], []
    with serving(args, args.shape, "--threads", "1") as (server, stages):
        pin(stages, {"scheduler": 0, "detokenizer": 1, "talker": 1, "vocoder": 1})
        for turn in range(args.rounds + 1):
            found = [server.answer(words(16, 400 + turn), args.text, frames) for frames in (0, args.text // 3)]
            off, on = ((args.text - 1) / (answer.last_text - answer.first_text) for answer in found)
            if turn:
                ratios.append(on / off)
                rates.append((off, on))
    off, on = (statistics.median(column) for column in zip(*rates))
    return f"tokens/s of a text of {args.text} tokens with speech over without, cores of their own", f"{on:.1f} / {off:.1f}", span(ratios)


def real_time_rows(args):
    for threads in (1, 2):
        walls, cores = [], []
        with serving(args, "tts", "--threads", str(threads)) as (server, stages):
            for turn in range(args.rounds):
                before = {stage: cpu_seconds(stages[stage]) for stage in ("talker", "vocoder")}
                seconds = server.speech(words(12, turn), args.sound, seed=turn)
                sound = args.sound * FRAME_SECONDS
                walls.append(seconds / sound)
                cores.append([(cpu_seconds(stages[stage]) - before[stage]) / sound for stage in before])
        talker, vocoder = (statistics.median(column) for column in zip(*cores))
        yield (f"a second of sound of Qwen3-TTS-0.6B's shape, threads of each stage: {threads}; processor seconds of talker + vocoder",
               f"{talker:.2f} + {vocoder:.2f} = {talker + vocoder:.2f} cores for real time", f"{span(walls)} s")


def memory_of(pids):
    """{name: MiB that no file backs}"""
    found = {}
    for name, pid in pids.items():
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        found[name] = int(status.split("RssAnon:")[1].split()[0]) / 1024
    return found


def hour_rows(args):
    _, folder = model_of(args.folder, "tiny")
    process, host, port, _ = start(args.program, str(folder), ["--threads", "1", "--request-timeout-s", "7200", *args.more])
    marks, seen, took, whole = [0.1, 0.5, 1.0], [], 0, (args.hour - 2) * 1920 * 2
    try:
        server, pids = Speaker(host, port), {"server": process.pid, **stages_of(process.pid)}
        server.speech("cat", 8)
        began = time.monotonic()
        connection, response = server.post("/v1/audio/speech", {"input": "cat dog", "voice": "ethan", "response_format": "pcm", "seed": 1,
                                                                "talker_max_new_tokens": args.hour})
        with contextlib.closing(connection):
            while data := response.read1(65536):
                took += len(data)
                while len(seen) < len(marks) and took >= marks[len(seen)] * whole:
                    seen.append(memory_of(pids))
        seconds, lasting = time.monotonic() - began, took / 2 / 24000
    finally:
        process.terminate()
        process.wait()
    for name in pids:
        yield (f"a speech of {lasting / 60:.1f} minutes in {seconds:.0f} s: {name}, MiB at a tenth, the middle and the end",
               ", ".join(f"{one[name]:.1f}" for one in seen), f"{seen[-1][name] / seen[0][name]:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {"peer": peer_row, "first": first_row, "long": long_row, "company": company_row, "text": text_row}
    several = {"real-time": real_time_rows, "hour": hour_rows}
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--shape", choices=("omni", "small"), default="omni")
    parser.add_argument("--measures", nargs="+", choices=[*measures, *several], default=["first", "long", "company", "text", "real-time"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "millrace-bench-speech")
    parser.add_argument("--peer", default="python3")
    parser.add_argument("--threads", type=int, default=2, help="of peer and first")
    parser.add_argument("--tokens", type=int, default=12, help="of peer")
    parser.add_argument("--frames", type=int, default=36, help="of peer")
    for name, length, what in (("long", 75, "frames of long"), ("company", 12, "frames of each speech of company"), ("text", 48, "tokens of text"),
                               ("sound", 40, "frames of real-time"), ("hour", 45000, "frames of hour")):
        parser.add_argument(f"--{name}", type=int, default=length, help=what)
    args, more = parser.parse_known_args()
    args.more = [each for each in more if each != "--"]
    load = os.getloadavg()[0]
    print("| what | | ratio |\n|---|---|---|")
    for name in args.measures:
        for row in several[name](args) if name in several else [measures[name](args)]:
            print("| " + " | ".join(row) + " |", flush=True)
    print(f"shape {args.shape}, load before {load:.1f}, after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
