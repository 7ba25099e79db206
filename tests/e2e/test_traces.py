"""Spans of requests, at a collector of OpenTelemetry that the test plays: OTLP/HTTP in JSON."""
import contextlib
import http.server
import json
import threading

from harness import DEMO, WAIT_S, Server, wait_until

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
        """A span of the server comes behind its parts."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(span["name"] == name for span in self.spans), WAIT_S), self.spans
            return list(self.spans)


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
        spans = {span["name"]: span for span in seen.wait_for_name("POST /v1/completions")}
        whole = spans.pop("POST /v1/completions")
        spans.pop("queue", None)  # one that did not wait has none
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
