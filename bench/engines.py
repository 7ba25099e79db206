"""The engines that bench/compare.py lets take turns. Each is asked for a measure of a model and gives figures by name.

An offline measure is one prompt or some steps inside the engine; a served one is requests from clients that ask again when they are
answered: over HTTP where the engine is a server, through its own calls where it is a library."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import time

OFFLINE = {"prefill-512": {"prompt": 512}, "prefill-2048": {"prompt": 2048}, "prefill-8192": {"prompt": 8192}, "decode-1": {"tokens": 64},
           **{f"decode-1-at-{depth}": {"tokens": 32, "depth": depth} for depth in (512, 2048, 4096, 8192)}}
SERVED = {**{f"decode-{n}": {"clients": n, "prompt": 8, "tokens": 128, "requests": n} for n in (2, 4, 8, 16, 32)},
          "serve-16": {"clients": 16, "prompt": 64, "tokens": 64, "requests": 64},
          "serve-shared": {"clients": 16, "prompt": 16, "tokens": 16, "requests": 64, "groups": 4, "prefix": 1024}}
# A pool that the requests before have filled, as in a server that has run for a while: fresh memory is the system's to find and zero.
AGAINST_OFFLINE = {"served-16": {"clients": 16, "prompt": 8, "tokens": 128, "requests": 16, "kv_gib": 0.3}}
SERVED |= AGAINST_OFFLINE
USUAL = ["prefill-512", "prefill-2048", "decode-1", "decode-1-at-2048", "decode-16", "serve-16", "serve-shared"]
RATE, ANSWERED, FIRST, READY = "tokens/s", "requests/s", "first token p50, ms", "ready, s"
LESS_IS_BETTER = (FIRST, READY)
READY_SECONDS = 300


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def wait_ready(port, server):
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"the server on port {port} ended with {server.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"the server on port {port} is not ready after {READY_SECONDS} s")


@contextlib.contextmanager
def running(command, port):
    """A server and what stands before it in its command; gives the seconds until it was ready."""
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_ready(port, server)
            yield time.monotonic() - begin
        finally:
            os.killpg(server.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def load(options, measure, port, ready):
    """The figures of a served measure, by `millrace bench serve` whoever serves."""
    m = SERVED[measure]
    kind = ["shared-prefix", "--groups", str(m["groups"]), "--prefix-tokens", str(m["prefix"])] if "groups" in m else ["random"]
    found = json.loads(output_of([
        options.program, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--clients", str(m["clients"]), "--warmup", str(m["clients"]),
        "--vocabulary", str(options.vocabulary), "--workload", *kind, "--prompt-tokens", str(m["prompt"]), "--tokens", str(m["tokens"]),
        "--requests", str(m["requests"]), "--json", "-"]))
    rate = {RATE: found["answer_tokens_per_s"]} if measure.startswith("decode") or measure in AGAINST_OFFLINE else {ANSWERED: found["requests_per_s"]}
    return {**rate, FIRST: found["ttft_ms"]["p50"], READY: ready}


class Millrace:
    name, port = "millrace", 28431

    def __init__(self, options):
        self.options = options
        self.version = output_of([options.program, "--version"]).strip()
        self.read_bytes_per_s = []  # the memory's speed, measured in each offline run

    def run(self, model, measure):
        o = self.options
        if measure in SERVED:
            with running([o.program, "serve", "--model", *shlex.split(model), "--threads", str(o.threads), "--port", str(self.port),
                          "--kv-dtype", o.kv_dtype, "--kv-gib", str(SERVED[measure].get("kv_gib", 0)), "--log-level", "error"], self.port) as ready:
                return load(o, measure, self.port, ready)
        m = OFFLINE[measure]
        found = json.loads(output_of([
            o.program, "bench", "offline", *shlex.split(model), "--threads", str(o.threads), "--rounds", "1", "--kv-dtype", o.kv_dtype,
            "--prompt", str(m.get("prompt", 16)), "--batch", "1", "--depth", str(m.get("depth", 0)), "--decode", str(m.get("tokens", 1)),
            "--json", "-"]))
        self.read_bytes_per_s.append(found["read_bytes_per_s"])
        return {RATE: found["prefill_tokens_per_s"] if "prompt" in m else found["decode"][0]["tokens_per_s"]}


class MillraceOffline:
    """The same batch without a server: one prefill of all prompts, then steps of one token for each, what a perfect server would reach."""
    name = "offline"

    def __init__(self, options):
        self.options = options

    def run(self, model, measure):
        o, m = self.options, AGAINST_OFFLINE[measure]
        found = json.loads(output_of([
            o.program, "bench", "offline", *shlex.split(model), "--threads", str(o.threads), "--rounds", "1", "--kv-dtype", o.kv_dtype,
            "--prompt", str(m["clients"] * m["prompt"]), "--batch", str(m["clients"]), "--depth", str(m["prompt"]),
            "--decode", str(m["tokens"] - 1), "--json", "-"]))
        rows, steps = m["clients"], m["tokens"] - 1
        seconds = rows * m["prompt"] / found["prefill_tokens_per_s"] + rows * steps / found["decode"][0]["tokens_per_s"]
        return {RATE: rows * m["tokens"] / seconds}


class LlamaCpp:
    """With flash attention and its own repacking, which are its best settings on processors of this kind."""
    name, port = "llama.cpp", 28432

    def __init__(self, options):
        self.options, self.before = options, shlex.split(options.peer)
        told = subprocess.run([*self.before, "llama-server", "--version"], capture_output=True, text=True, check=True)
        self.version = re.search(r"version: (.*)", told.stdout + told.stderr)[1]

    def run(self, model, measure):
        threads = str(self.options.threads)
        if measure in SERVED:
            clients = SERVED[measure]["clients"]
            # A slot's share of the context holds a shared prefix and an answer.
            with running([*self.before, "llama-server", "-m", model, "-t", threads, "-tb", threads, "-fa", "on", "-np", str(clients), "-c",
                          str(clients * 2048), "--port", str(self.port), "--no-webui"], self.port) as ready:
                return load(self.options, measure, self.port, ready)
        m = OFFLINE[measure]
        found = json.loads(output_of([*self.before, "llama-bench", "-m", model, "-t", threads, "-r", "1", "-fa", "1", "-o", "json",
                                      "-p", str(m.get("prompt", 0)), "-n", str(m.get("tokens", 0)), "-d", str(m.get("depth", 0))]))
        return {RATE: found[-1]["avg_ts"]}


class NodeLlamaCpp:
    """llama.cpp as the npm package node-llama-cpp brings it, prebuilt; a library, so nothing goes through HTTP."""
    name = "node-llama-cpp"

    def __init__(self, options):
        self.options, self.version = options, "not asked"

    def run(self, model, measure):
        m = {**OFFLINE, **SERVED}[measure]
        if measure in SERVED and measure.startswith("decode"):
            m = {"clients": m["clients"], "tokens": m["tokens"]}  # in step, which fills its batches best
        script = pathlib.Path(__file__).with_name("compare_node.mjs")
        found = json.loads(output_of(["node", str(script), os.path.abspath(self.options.node_peer), model, "--threads", str(self.options.threads),
                                      "--vocabulary", str(self.options.vocabulary), *(f"--{name}={value}" for name, value in m.items())]))
        self.version = found["build"]
        if "requests" in m:
            return {ANSWERED: found["requests_per_s"], FIRST: found["ttft_p50_ms"], READY: found["ready_s"]}
        return {RATE: found["tokens_per_s"]}
