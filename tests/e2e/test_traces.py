"""Spans of requests, at a collector of OpenTelemetry that the test plays: OTLP/HTTP in JSON."""
import contextlib
import http.server
import json
import threading

import pytest

from harness import DEMO, WAIT_S, Joined, Server, past_silence, wait_until
from omni_model import speaking_model
from test_layer_hosts import join, lead, pipeline, wait_ready
from test_layer_split import answer
from test_pipeline import CASES, LONG, RUN, by_stage, check_result, example, paced  # noqa: F401: fixtures
from test_vision import ask, whole as whole_answer
from test_vision_split import file as vision_file
from vision_model import served, vision_model


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(http.server.ThreadingHTTPServer):
    """`spans`: what came, with their attributes as a dict; `refusals`: so many exports get a 503 first."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans, self.resources, self.heads, self.refusals = [], [], [], 0
        self.changed = threading.Condition()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.spans) >= count, WAIT_S), self.spans
            return list(self.spans)


    def wait_for_name(self, name):
        """A span of the server comes behind its parts; those of stages of other processes come on their own."""
        return self.wait_for_names({name})

    def wait_for_names(self, names, trace=None):
        """All spans, or those of this trace, once these are among them."""
        def found():
            return [span for span in self.spans if trace in (None, span["traceId"])]

        with self.changed:
            assert self.changed.wait_for(lambda: names <= {span["name"] for span in found()}, WAIT_S), (names, self.spans)
            return found()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.changed:
            refused = self.server.refusals > 0
            self.server.refusals -= refused
            if not refused:
                self.server.heads.append((self.path, self.headers))
                for resource in body["resourceSpans"]:
                    self.server.resources.append(attributes(resource["resource"]))
                    self.server.spans += [{**span, "attributes": attributes(span)} for each in resource["scopeSpans"] for span in each["spans"]]
                self.server.changed.notify_all()
        self.send_response(503 if refused else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def attributes(entry):
    return {each["key"]: next(iter(each["value"].values())) for each in entry["attributes"]}


@contextlib.contextmanager
def collector():
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_request_is_a_span_of_its_callers_trace_with_its_parts_below():
    with collector() as seen, Server("--otlp-traces-endpoint", seen.url) as server:
        unsampled = {"traceparent": f"00-{'1' * 32}-{PARENT}-00"}
        body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True}
        assert server.post("/v1/completions", body, headers=unsampled)[0] == 200
        status, headers, _ = server.post("/v1/completions", body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert status == 200
        names = {"POST /v1/completions", "stage scheduler", "stage detokenizer"}
        spans = {span["name"]: span for span in seen.wait_for_names(names)}
        whole = spans.pop("POST /v1/completions")
        spans.pop("queue", None)  # one that did not wait has none
        for name in ("scheduler", "detokenizer"):
            stage = spans.pop(f"stage {name}")
            assert_inside(stage, whole)
            assert stage["attributes"]["millrace.stage.name"] == name
        assert set(spans) == {"tokenize", "prefill", "decode"}
        assert int(spans["tokenize"]["startTimeUnixNano"]) == int(whole["startTimeUnixNano"]) and int(spans["tokenize"]["endTimeUnixNano"]) <= int(spans["prefill"]["startTimeUnixNano"])
        assert (whole["traceId"], whole["parentSpanId"], whole["kind"]) == (TRACE, PARENT, 2) and "status" not in whole
        wanted = {"gen_ai.request.model": "demo", "gen_ai.operation.name": "text_completion", "gen_ai.usage.output_tokens": "8",
                  "gen_ai.response.finish_reasons": {"values": [{"stringValue": "length"}]}, "millrace.request_id": headers["x-request-id"]}
        assert wanted.items() <= whole["attributes"].items(), whole["attributes"]
        for part in spans.values():
            assert (part["traceId"], part["parentSpanId"], part["kind"]) == (TRACE, whole["spanId"], 1)
            assert int(whole["startTimeUnixNano"]) <= int(part["startTimeUnixNano"]) <= int(part["endTimeUnixNano"]) <= int(whole["endTimeUnixNano"])
        assert spans["prefill"]["endTimeUnixNano"] == spans["decode"]["startTimeUnixNano"]
        assert seen.heads[0][0] == "/v1/traces" and seen.resources[0]["service.name"] == "millrace"


def test_a_server_of_several_models_passes_the_callers_trace_on():
    models = ["--model", f"one={DEMO}", "--model", f"two={DEMO}"]
    with collector() as seen, Server(*models, "--otlp-traces-endpoint", seen.url, "--otlp-traces-sample", "0", model=None) as server:
        body = {"model": "two", "prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}
        assert server.post("/v1/completions", body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 200
        whole = next(span for span in seen.wait_for_name("POST /v1/completions") if span["name"].startswith("POST"))
        assert (whole["traceId"], whole["parentSpanId"], whole["attributes"]["gen_ai.request.model"]) == (TRACE, PARENT, "two")


def assert_inside(span, whole):
    assert (span["traceId"], span["parentSpanId"], span["kind"]) == (whole["traceId"], whole["spanId"], 1)
    assert int(whole["startTimeUnixNano"]) <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) <= int(whole["endTimeUnixNano"])


def received_bytes(server):
    lines = [line for line in server.get("/metrics")[2].splitlines() if line.startswith("millrace:kv_transfer_bytes_total{") and 'end="decode"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_the_wait_for_pages_of_another_process_is_a_span_with_what_came_and_how():
    with collector() as seen, Server("--prefill", "1", "--decode", "1", "--min-remote-tokens", "16", "--otlp-traces-endpoint", seen.url, "--otlp-traces-sample", "0") as server:
        def asked(i, sampled):
            body = {"text": f"Story {i}. " + f"Once upon a time there was a dog, number {i}. " * 8, "sampling_params": {"max_new_tokens": 4}}
            info = server.post("/generate", body, headers={"traceparent": f"00-{TRACE}-{PARENT}-0{int(sampled)}"})[2]["meta_info"]
            return info["transferred_tokens"]

        prompts = iter(range(1000))
        wait_until(lambda: asked(next(prompts), False) > 0, "a prefill replica that computes")
        before = received_bytes(server)
        tokens = asked(next(prompts), True)
        spans = {span["name"]: span for span in seen.wait_for_name("POST /generate")}
        whole, span = spans["POST /generate"], spans["kv_transfer"]
        assert (span["traceId"], span["parentSpanId"], span["kind"]) == (TRACE, whole["spanId"], 1)
        assert tokens > 0 and int(span["attributes"]["millrace.kv_transfer.tokens"]) == int(whole["attributes"]["millrace.transferred_tokens"]) == tokens
        assert span["attributes"]["millrace.kv_transfer.mode"] in ("shm", "inproc", "messages", "mixed"), span
        begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert int(spans["tokenize"]["endTimeUnixNano"]) <= begin <= end <= int(spans["prefill"]["startTimeUnixNano"])
        size = int(span["attributes"]["millrace.kv_transfer.bytes"])
        assert size > 0 and size % tokens == 0
        wait_until(lambda: received_bytes(server) >= before + size, "the same bytes in the metrics")
        # One that needs no pages of another has no such span.
        assert server.post("/v1/completions", {"prompt": "A", "max_tokens": 1}, headers={"traceparent": f"00-{'2' * 32}-{PARENT}-01"})[0] == 200
        assert "kv_transfer" not in {span["name"] for span in seen.wait_for_name("POST /v1/completions") if span["traceId"] == "2" * 32}


def test_a_refused_request_is_a_failed_span():
    with collector() as seen, Server("--otlp-traces-endpoint", seen.url) as server:
        assert server.post("/v1/chat/completions", {"model": "demo", "messages": [], "max_tokens": 0})[0] == 400
        (span,) = seen.wait_for(1)
        assert span["status"]["code"] == 2 and span["status"]["message"] and span["attributes"]["error.type"] == "invalid_argument"
        assert "parentSpanId" not in span


def test_the_environment_names_the_collector_and_an_absent_one_costs_no_answer():
    with collector() as seen:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": seen.url + "/", "OTEL_SERVICE_NAME": "stories", "OTEL_RESOURCE_ATTRIBUTES": "team=a%20b",
               "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret"}
        with Server(env=env) as server:
            seen.refusals = 1
            server.chat("A story.", max_tokens=2)
            seen.wait_for(3)
            assert seen.resources[0]["service.name"] == "stories" and seen.resources[0]["team"] == "a b"
            assert seen.heads[0][1]["x-key"] == "secret"
            wait_until(lambda: server.metrics()["millrace:spans_exported_total"] >= 3, "the count of spans")
    with Server("--otlp-traces-endpoint", "http://127.0.0.1:9") as server:
        for _ in range(3):
            server.chat("A story.", max_tokens=2)
        assert server.stop() == 0


def test_a_share_of_the_requests_may_be_traced():
    with collector() as seen, Server("--otlp-traces-endpoint", seen.url, "--otlp-traces-sample", "0") as server:
        server.chat("A story.", max_tokens=2)
        assert server.post("/v1/completions", {"prompt": "A", "max_tokens": 1}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 200
        assert {span["traceId"] for span in seen.wait_for(2)} == {TRACE}


def traced(number, sampled=True):
    """Headers of a trace of its own; its id."""
    trace = f"{number:032x}"
    return {"traceparent": f"00-{trace}-{PARENT}-0{int(sampled)}"}, trace


def stages_of(spans):
    """{stage: its span}, of one request; each stage gives one."""
    found = [span for span in spans if span["name"].startswith("stage ")]
    by_name = {span["attributes"]["millrace.stage.name"]: span for span in found}
    assert len(by_name) == len(found), found
    return by_name


def names_of(*stages):
    return {f"stage {name}" for name in stages}


@pytest.mark.parametrize("placement", ["single", "processes"])
def test_each_stage_of_a_pipeline_that_handles_a_request_is_a_span(example, placement):
    speaks = next(case for case in CASES if case["modalities"] == ["text", "audio"])
    shows = next(case for case in CASES if "image" in case["inputs"] and case["modalities"] == ["text"])
    with collector() as seen, Server("--pipeline", str(example), "--placement", placement, "--otlp-traces-endpoint", seen.url,
                                     "--otlp-traces-sample", "0", model=None) as server:
        def asked(number, case, stages, sampled=True):
            headers, trace = traced(number, sampled)
            status, _, body = past_silence(lambda: server.post(RUN, {"inputs": case["inputs"]}, headers=headers))
            assert status == 200, body
            check_result(case, body["result"])
            return seen.wait_for_names({"POST " + RUN, *names_of(*stages)} if sampled else set(), trace)

        assert server.post(RUN, {"inputs": speaks["inputs"]})[0] == 200  # of no trace
        asked(1, speaks, set(), sampled=False)
        stages = {"preprocessing", "mm_aggregate", "thinker", "decode", "talker_ar", "code2wav"}
        spans = asked(2, speaks, stages)
        found = stages_of(spans)
        (whole,) = (span for span in spans if span["name"] == "POST " + RUN)
        assert found.keys() == stages and "status" not in whole and whole["parentSpanId"] == PARENT
        for stage in found.values():
            assert_inside(stage, whole)
            assert "status" not in stage and stage["attributes"]["millrace.stage.replica"] == "0"
        for names in (("preprocessing", "mm_aggregate", "thinker", "decode"), ("mm_aggregate", "talker_ar", "code2wav")):
            begins = [int(found[name]["startTimeUnixNano"]) for name in names]
            assert begins == sorted(begins)
        assert found["thinker"]["attributes"]["millrace.stage.worker"] == "toy.think"
        assert int(found["thinker"]["attributes"]["millrace.stage.chunks_out"]) > 24  # to two stages
        picture = stages_of(asked(3, shows, {"preprocessing", "image_encoder", "mm_aggregate", "thinker", "decode"}))
        assert picture.keys() == {"preprocessing", "image_encoder", "mm_aggregate", "thinker", "decode"}
        def moved(name, way):
            return int(picture[name]["attributes"][f"millrace.stage.relay_bytes_{way}"])

        assert moved("image_encoder", "in") > 0
        assert moved("preprocessing", "out") + moved("image_encoder", "out") == moved("image_encoder", "in") + moved("mm_aggregate", "in")
        # Those that were not sampled have given nothing meanwhile.
        assert {span["traceId"] for span in seen.spans} == {f"{number:032x}" for number in (2, 3)}
        assert server.stop() == 0
    pids = {resource["process.pid"] for resource in seen.resources}
    assert len(pids) == (1 if placement == "single" else 8), seen.resources  # preprocessing to code2wav, and the server


def test_a_stage_that_fails_or_is_aborted_says_so(paced):
    with collector() as seen, Server("--pipeline", str(paced), "--otlp-traces-endpoint", seen.url, model=None) as server:
        headers, trace = traced(1)
        bad = {"inputs": {"image": {"width": -1, "height": 2, "seed": 0}}}
        assert server.post(RUN, bad, headers=headers)[0] == 400
        spans = seen.wait_for_names({"POST " + RUN, "stage preprocessing"}, trace)
        whole = next(span for span in spans if span["name"] == "POST " + RUN)
        (stage,) = stages_of(spans).values()
        assert_inside(stage, whole)
        for span in (stage, whole):
            assert span["status"]["code"] == 2 and "width" in span["status"]["message"] and span["attributes"]["error.type"] == "invalid_argument"
        # Refused before any stage had it.
        headers, trace = traced(2)
        assert server.post(RUN, {}, headers=headers)[0] == 400
        (refused,) = seen.wait_for_names({"POST " + RUN}, trace)
        assert "inputs is missing" in refused["status"]["message"]
        # A client that leaves: the stages that are at it end with its abort, those that had done their part are done.
        headers, trace = traced(3)
        events = server.stream(RUN, {"inputs": LONG}, headers=headers)
        for _ in range(3):
            next(events)
        at_it = ("thinker", "talker_ar", "decode", "code2wav")
        # An abort that overtakes the request to a stage leaves no span there.
        wait_until(lambda: all(by_stage(server, "stage_requests").get(name, 0) > 0 for name in at_it), "request in its stages")
        events.close()
        spans = seen.wait_for_names({"POST " + RUN, *names_of("preprocessing", "mm_aggregate", *at_it)}, trace)
        found = stages_of(spans)
        whole = next(span for span in spans if span["name"] == "POST " + RUN)
        assert whole["status"]["message"] == "the client left"
        for name in at_it:
            assert found[name]["attributes"]["error.type"] == "cancelled", found[name]
            assert int(whole["startTimeUnixNano"]) <= int(found[name]["startTimeUnixNano"])
        for name in ("preprocessing", "mm_aggregate"):
            assert "status" not in found[name]
            assert_inside(found[name], whole)


def test_the_stages_of_an_answer_that_is_spoken_are_spans(tmp_path):
    model = speaking_model(tmp_path / "speaks")
    with collector() as seen, Server("--otlp-traces-endpoint", seen.url, model=model) as server:
        headers, trace = traced(1)
        body = {"messages": [{"role": "user", "content": "Say it."}], "modalities": ["text", "audio"], "audio": {"format": "wav"}, "max_tokens": 4, "temperature": 0}
        status, _, found = server.post("/v1/chat/completions", body, headers=headers)
        assert status == 200, found
        spans = seen.wait_for_names({"POST /v1/chat/completions", *names_of("scheduler", "detokenizer", "talker", "vocoder")}, trace)
        whole = next(span for span in spans if span["name"] == "POST /v1/chat/completions")
        for stage in stages_of(spans).values():
            assert_inside(stage, whole)
        assert {"tokenize", "prefill", "decode"} <= {span["name"] for span in spans}


def test_the_ranges_of_a_layer_split_are_spans():
    with collector() as seen, Server("--pp", "2", "--otlp-traces-endpoint", seen.url, "--otlp-traces-sample", "0") as server:
        server.chat("A story.", max_tokens=2)
        headers, trace = traced(1)
        prompt = {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True}
        assert server.post("/v1/completions", prompt, headers=headers)[0] == 200
        spans = seen.wait_for_names({"POST /v1/completions", "range 0", "range 1", *names_of("scheduler", "detokenizer")}, trace)
        by_name = {span["name"]: span for span in spans}
        for name in ("range 0", "range 1"):
            assert_inside(by_name[name], by_name["POST /v1/completions"])
            found = {key.removeprefix("millrace.range."): value for key, value in by_name[name]["attributes"].items()}
            assert found["index"] == name[-1] and int(found["parts"]) >= 8 and int(found["rows"]) >= 8 + 3 and int(found["compute_us"]) > 0, found
        assert by_name["range 1"]["attributes"]["millrace.range.row_bytes_in"] != "0" == by_name["range 0"]["attributes"]["millrace.range.row_bytes_in"]
        assert {span["traceId"] for span in seen.spans} == {trace}


def test_a_stage_that_computes_prompts_is_a_span_of_the_request_that_it_computes_for():
    with collector() as seen, Server("--prefill", "1", "--min-remote-tokens", "16", "--otlp-traces-endpoint", seen.url, "--otlp-traces-sample", "0") as server:
        def asked(i, headers):
            body = {"text": f"Tale {i}. " + f"Once upon a time there was a cat, number {i}. " * 8, "sampling_params": {"max_new_tokens": 4}}
            return server.post("/generate", body, headers=headers)[2]["meta_info"]["transferred_tokens"]

        prompts = iter(range(1000))
        wait_until(lambda: asked(next(prompts), {}) > 0, "a prefill replica that computes")
        headers, trace = traced(1)
        tokens = asked(next(prompts), headers)
        spans = seen.wait_for_names({"POST /generate", "kv_transfer", *names_of("scheduler", "detokenizer", "prefill")}, trace)
        by_name = {span["name"]: span for span in spans}
        stage = by_name["stage prefill"]
        assert_inside(stage, by_name["POST /generate"])
        assert stage["attributes"]["millrace.stage.worker"] == "prefill" and int(stage["attributes"]["millrace.kv_transfer.tokens"]) == tokens
        assert stage["attributes"]["millrace.kv_transfer.bytes"] == by_name["kv_transfer"]["attributes"]["millrace.kv_transfer.bytes"]


def test_a_stage_that_encodes_pictures_is_a_span_of_the_request_that_has_them(tmp_path):
    model = vision_model(tmp_path / "vl")
    conversation = next(one for one in served()["conversations"] if len(one["parts"]) > 1)
    with collector() as seen, Server("--pipeline", str(vision_file(tmp_path)), "--otlp-traces-endpoint", seen.url, "--otlp-traces-sample", "0", model=model) as server:
        headers, trace = traced(1)
        assert server.post("/v1/chat/completions", ask(*conversation["parts"]), headers=headers)[0] == 200
        spans = seen.wait_for_names({"POST /v1/chat/completions", *names_of("scheduler", "vision", "detokenizer")}, trace)
        whole = next(span for span in spans if span["name"].startswith("POST"))
        encoded = [span for span in spans if span["name"] == "stage vision"]  # one for each picture
        for span in encoded:
            assert_inside(span, whole)
            assert int(span["attributes"]["millrace.media.feature_bytes"]) > 0 < int(span["attributes"]["millrace.media.bytes"])


def test_a_stage_that_joined_exports_its_own_spans(tmp_path):
    """The server and a joined process have a collector each: each gives its own."""
    with collector() as ours, collector() as theirs:
        path = pipeline(tmp_path, (0, 8, None))
        path.write_text(path.read_text().replace(", layers: [0, 8]", "").replace("terminal: true,", "terminal: true, host: b,"))
        with lead(path, "--otlp-traces-endpoint", ours.url, "--otlp-traces-sample", "0") as server, \
                join(path, "detokenize", more=["--otlp-traces-endpoint", theirs.url]):
            wait_ready(server)
            headers, trace = traced(1)
            assert server.post("/v1/completions", {"prompt": "A", "max_tokens": 2, "ignore_eos": True}, headers=headers)[0] == 200
            (stage,) = theirs.wait_for_names({"stage detokenize"}, trace)
            spans = ours.wait_for_names({"POST /v1/completions", "stage generate"}, trace)
            assert_inside(stage, next(span for span in spans if span["name"].startswith("POST")))
            assert "stage detokenize" not in {span["name"] for span in spans}
