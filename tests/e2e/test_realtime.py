"""The Realtime API over a WebSocket: the same answers as a chat's, text and speech in and out, interruptions, hostile clients, books at rest;
and OpenAI's own client."""
import base64
import concurrent.futures
import json
import os
import pathlib
import struct
import subprocess

import pytest

from harness import Server, wait_until
from omni_model import audio, clip, speaking_model
from test_omni import upload, wav
from test_speech import at_rest
from tool_model import tool_model
from vision_model import picture
from websocket import BINARY, CLOSE, TEXT, Refused, WebSocket

REALTIME = "/v1/realtime"
CHAT = "/v1/chat/completions"
OPENAI = pathlib.Path(__file__).resolve().parent / "openai"
SAID = [{"type": "input_text", "text": "Good morning!"}]
GREEDY = {"temperature": 0, "talker_do_sample": False, "talker_max_new_tokens": 12, "max_output_tokens": 8}
TEXT_ONLY = {"output_modalities": ["text"]}
TRIES = 20  # on a machine that is slow to send a cancel, an answer may be complete before it


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    with Server(model=speaking_model(tmp_path_factory.mktemp("realtime") / "speaker")) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


class Session(WebSocket):
    def __init__(self, server, path=REALTIME, headers=None, receive=None, **session):
        super().__init__(server, path, headers, receive)
        self.session = self.expect("session.created")["session"]
        if session:
            self.update(**session)

    def update(self, **session):
        self.send({"type": "session.update", "session": session})
        self.session = self.expect("session.updated")["session"]

    def say(self, content, role="user"):
        self.send({"type": "conversation.item.create", "item": {"type": "message", "role": role, "content": content}})
        added = self.expect("conversation.item.added")
        self.expect("conversation.item.done")
        return added["item"]["id"]

    def answer(self, **response):
        self.send({"type": "response.create", "response": response} if response else {"type": "response.create"})
        events = self.until("response.done")
        assert events[0]["type"] == "response.created", events[0]
        return events

    def refused(self, event):
        self.send(event)
        return self.expect("error")["error"]


def deltas(events, kind):
    return [event["delta"] for event in events if event["type"] == kind]


def sound(events):
    return b"".join(base64.b64decode(delta) for delta in deltas(events, "response.output_audio.delta"))


def pcm_of(name):
    """The samples of a clip, each repeated so that they are at 24 kHz: another sound, and good enough for a model of random weights."""
    data = clip(name)
    samples = struct.unpack(f"<{(len(data) - 44) // 2}h", data[44:])
    return struct.pack(f"<{len(samples) * 3 // 2}h", *(samples[i * 2 // 3] for i in range(len(samples) * 3 // 2)))


def encoded(data):
    return base64.b64encode(data).decode()


def chat_of(server, messages, **more):
    found = server.chat_answer({"messages": messages, "modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "pcm16"},
                                "temperature": 0, "talker_do_sample": False, "talker_max_new_tokens": 12, "max_tokens": 8, **more})
    message = found["choices"][0]["message"]
    return message["audio"]["transcript"], base64.b64decode(message["audio"]["data"]), found["usage"]


def test_an_answer_is_that_of_a_chat(speaker):
    voice = {"audio": {"output": {"voice": "ethan"}, "input": {"turn_detection": None}}}
    pcm = pcm_of("sweep.wav")
    turns = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Good morning!"}]
    with Session(speaker, type="realtime", instructions="Answer.", **GREEDY, **voice) as session:
        session.say(SAID)
        first = session.answer()
        text, samples, usage = chat_of(speaker, turns)
        assert "".join(deltas(first, "response.output_audio_transcript.delta")) == text
        assert sound(first) == samples and len(samples) > 0
        done = first[-1]["response"]
        assert done["status"] in ("completed", "incomplete") and done["output"][0]["content"] == [{"type": "output_audio", "transcript": text}]
        assert done["usage"]["input_tokens"] == usage["prompt_tokens"]
        assert done["usage"]["output_token_details"] == {"text_tokens": usage["completion_tokens"],
                                                         "audio_tokens": usage["completion_tokens_details"]["audio_tokens"]}
        # The conversation goes on, by a sound that comes in pieces.
        for begin in range(0, len(pcm), 9600):
            session.send({"type": "input_audio_buffer.append", "audio": encoded(pcm[begin:begin + 9600])})
        session.send({"type": "input_audio_buffer.commit"})
        assert session.expect("input_audio_buffer.committed")["previous_item_id"] == done["output"][0]["id"]
        session.until("conversation.item.done")
        second = session.answer()
        turns += [{"role": "assistant", "content": text}, {"role": "user", "content": [audio(wav(pcm, 24000))]}]
        text, samples, usage = chat_of(speaker, turns)
        assert "".join(deltas(second, "response.output_audio_transcript.delta")) == text and sound(second) == samples
        details = second[-1]["response"]["usage"]["input_token_details"]
        assert details["audio_tokens"] > 0 and details["text_tokens"] + details["audio_tokens"] == usage["prompt_tokens"]


def test_an_item_with_a_sound_is_what_was_committed(speaker):
    pcm = pcm_of("click.wav")
    answers = []
    for content in (None, [{"type": "input_audio", "audio": encoded(pcm)}]):
        with Session(speaker, audio={"input": {"turn_detection": None}}, **GREEDY, **TEXT_ONLY) as session:
            if content:
                session.say(content)
            else:
                session.send({"type": "input_audio_buffer.append", "audio": encoded(pcm)})
                session.send({"type": "input_audio_buffer.commit"})
                session.until("conversation.item.done")
            answers.append(session.answer()[-1]["response"])
    assert answers[0]["output"][0]["content"] == answers[1]["output"][0]["content"]
    assert answers[0]["usage"]["input_tokens"] == answers[1]["usage"]["input_tokens"]


def test_a_transcript_of_speech_is_that_of_an_upload(speaker):
    """The model's weights are random: what it writes may have no end, which is a failure beside the same deltas."""
    pcm = pcm_of("click.wav")
    _, _, first = upload(speaker, [("file", "a.wav", wav(pcm, 24000)), ("max_tokens", None, b"1")])
    limit = 4 * json.loads(first)["usage"]["input_token_details"]["audio_tokens"] + 64
    status, _, body = upload(speaker, [("file", "a.wav", wav(pcm, 24000)), ("max_tokens", None, str(limit).encode())])
    assert status == 200, body
    kind = "conversation.item.input_audio_transcription."
    with Session(speaker, audio={"input": {"turn_detection": None, "transcription": {"model": speaker.model}}}, **TEXT_ONLY) as session:
        session.send({"type": "input_audio_buffer.append", "audio": encoded(pcm)})
        session.send({"type": "input_audio_buffer.commit"})
        item = session.expect("input_audio_buffer.committed")["item_id"]
        session.expect("conversation.item.added")
        session.expect("conversation.item.done")
        events = [session.read()]
        while events[-1]["type"] == kind + "delta":
            events.append(session.read())
        assert {event["item_id"] for event in events} == {item} and events[-1]["type"] in (kind + "completed", kind + "failed")
        assert "".join(deltas(events, kind + "delta")).strip() == json.loads(body)["text"]
        assert session.refused({"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}})["param"] == "session.audio.input.transcription.model"


def test_a_function_is_called_and_its_output_goes_on(tmp_path):
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["paris", "rome"]}}, "required": ["city"], "additionalProperties": False}}
    with Server(model=tool_model(tmp_path / "demo")) as server, Session(server, tools=[tool], temperature=0, max_output_tokens=100) as session:
        session.say([{"type": "input_text", "text": "How is the weather?"}])
        events = session.answer(tool_choice="required")
        done = events[-1]["response"]
        calls = done["output"]  # one or several, as the model likes
        assert {(call["type"], call["name"]) for call in calls} == {("function_call", "weather")}
        assert json.loads(calls[0]["arguments"])["city"] in ("paris", "rome")
        assert "".join(deltas(events, "response.function_call_arguments.delta")) == "".join(call["arguments"] for call in calls)
        for call in calls:
            session.send({"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}})
            session.until("conversation.item.done")
        events = session.answer(tool_choice="none")
        asked = [{"role": "user", "content": "How is the weather?"},
                 {"role": "assistant", "content": "", "tool_calls": [{"id": call["call_id"], "type": "function", "function": {"name": "weather", "arguments": call["arguments"]}} for call in calls]},
                 *({"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"} for call in calls)]
        function = {"type": "function", "function": {key: tool[key] for key in ("name", "parameters")}}
        found = server.chat_answer({"messages": asked, "tools": [function], "tool_choice": "none", "temperature": 0, "max_tokens": 100,
                                    "chat_template_kwargs": {"enable_thinking": False}})
        assert "".join(deltas(events, "response.output_text.delta")) == found["choices"][0]["message"]["content"]


def test_a_turn_that_is_heard_is_answered(speaker):
    loud = struct.pack("<12000h", *(9000 if i // 40 % 2 else -9000 for i in range(12000)))
    with Session(speaker, **GREEDY) as session:
        assert session.session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        for piece in (bytes(24000), loud, bytes(48000)):
            session.send({"type": "input_audio_buffer.append", "audio": encoded(piece)})
        started = session.expect("input_audio_buffer.speech_started")
        assert session.expect("input_audio_buffer.speech_stopped")["item_id"] == started["item_id"]
        assert session.expect("input_audio_buffer.committed")["item_id"] == started["item_id"]
        assert len(sound(session.until("response.done"))) > 0


def test_two_sessions_do_not_meet(speaker):
    def talk(number):
        with Session(speaker, **GREEDY) as session:
            session.say([{"type": "input_text", "text": f"Number {number}."}])
            first = session.answer()
            session.say([{"type": "input_text", "text": "And?"}])
            second = session.answer()
            return [("".join(deltas(one, "response.output_audio_transcript.delta")), sound(one)) for one in (first, second)]
    alone = [talk(number) for number in range(3)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = list(pool.map(talk, [0, 1, 2, 0, 1, 2]))
    assert together == alone * 2


def aborted(server):
    return server.metrics().get("millrace:num_aborted_requests_total", 0)


def rested(server):
    return at_rest(server) and server.metrics()["millrace:realtime_sessions"] == 0 == server.metrics()["millrace:realtime_bytes"]


LONG = {"temperature": 0, "seed": 2, "talker_max_new_tokens": 900, "ignore_eos": True, "max_output_tokens": 400}


def cancelled_item(session):
    """Of an answer that was cancelled while it was made; None: it was faster."""
    session.say(SAID)
    session.send({"type": "response.create"})
    session.until("response.output_audio.delta")
    session.send({"type": "response.cancel"})
    done = session.until("response.done")[-1]["response"]
    if done["status"] == "incomplete":
        assert session.expect("error")["error"]["code"] == "response_cancel_not_active"
        return None
    assert done["status"] == "cancelled" and done["status_details"]["reason"] == "client_cancelled"
    return done["output"][0]


def test_a_cancel_ends_the_answer_and_the_conversation_goes_on(speaker):
    for _ in range(TRIES):
        with Session(speaker, **{**LONG, "audio": {"output": {"voice": "ethan"}}}) as session:
            item = cancelled_item(session)
            if not item:
                continue
            session.send({"type": "conversation.item.truncate", "item_id": item["id"], "content_index": 0, "audio_end_ms": 0})
            session.expect("conversation.item.truncated")
            session.say(SAID)
            assert session.answer(**GREEDY)[-1]["response"]["status"] in ("completed", "incomplete")
            break
    else:
        pytest.fail(f"{TRIES} answers were faster than their cancels")
    wait_until(lambda: rested(speaker), "rest")


def aborts(speaker, event):
    """Whether a client that left at `event` left its answer while it was made."""
    before = aborted(speaker)
    with Session(speaker, **LONG) as session:
        session.say(SAID)
        session.send({"type": "response.create"})
        session.until(event)
    wait_until(lambda: rested(speaker), "rest")
    return aborted(speaker) > before


def test_clients_that_leave_leave_nothing(speaker):
    for event in ("response.created", "response.output_item.added", "response.output_audio.delta"):
        assert any(aborts(speaker, event) for _ in range(TRIES)), event


def test_a_listener_that_pauses_loses_nothing(speaker):
    fields = {"temperature": 0, "seed": 2, "ignore_eos": True, "max_output_tokens": 300, "talker_max_new_tokens": 400}
    with Session(speaker, receive=1 << 14, **fields) as session:
        session.say(SAID)
        session.send({"type": "response.create"})
        events = session.until("response.output_audio.delta")
        wait_until(lambda: speaker.stage("talker")["running"] == 0, "the last frame of the talker")
        events += session.until("response.done")
        tokens = events[-1]["response"]["usage"]["output_token_details"]["audio_tokens"]
        assert len(sound(events)) == 2 * (1920 * tokens - 555) > 500000, "its layers trim the ends"


def test_pictures_are_seen(speaker):
    url = "data:image/png;base64," + encoded(picture("gradient.png"))
    with Session(speaker, **GREEDY, **TEXT_ONLY) as session:
        session.say([{"type": "input_image", "image_url": url}, *SAID])
        usage = session.answer()[-1]["response"]["usage"]
        assert usage["input_token_details"]["image_tokens"] > 0
        for wrong in ("https://example.invalid/a.png", "data:image/png;base64,AAAA", "x"):
            content = [{"type": "input_image", "image_url": wrong}]
            event = {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}}
            assert "item.content[0]" in session.refused(event)["message"]


def test_a_model_of_text_is_served_and_audio_is_refused_by_name(server):
    with Session(server) as session:
        assert session.session["output_modalities"] == ["text"]
        session.say(SAID)
        events = session.answer(temperature=0, max_output_tokens=12)
        text = "".join(deltas(events, "response.output_text.delta"))
        assert text == server.chat("Good morning!", temperature=0, max_tokens=12)
        assert events[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": text}]
        assert session.refused({"type": "input_audio_buffer.append", "audio": "AAAA"})["param"] == "input_audio_buffer"
        wrong = session.refused({"type": "session.update", "session": {"output_modalities": ["audio"]}})
        assert wrong["param"] == "session.output_modalities"
        content = [{"type": "input_audio", "audio": encoded(bytes(9600))}]
        wrong = session.refused({"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}})
        assert wrong["param"] == "item.content[0]"
        # A context that is too small is an end of the response, not of the session.
        session.say([{"type": "input_text", "text": "long " * 20000}])
        done = session.answer()[-1]["response"]
        assert done["status"] == "failed" and done["status_details"]["error"]["code"] == "context_length_exceeded"


def test_hostile_frames_end_their_connection_alone(server):
    with Session(server) as good:
        for send, code in [
                (lambda s: s.socket.sendall(s.frame(TEXT, b"x" * ((8 << 20) + 1))), 1009),
                (lambda s: s.socket.sendall(s.frame(BINARY, b"\0" * 10)), 1003),
                (lambda s: s.socket.sendall(s.frame(TEXT, b"\xff\xfe")), 1007),
                (lambda s: s.socket.sendall(s.frame(TEXT, b"{}", masked=False)), 1002),
                (lambda s: s.socket.sendall(s.frame(3, b"")), 1002),
                (lambda s: s.socket.sendall(s.frame(CLOSE, struct.pack(">H", 1000))), 1000)]:
            with Session(server) as session:
                try:
                    send(session)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # closed before all of it was taken
                try:
                    while session.read() is not None:
                        pass
                    assert session.closed[0] == code, session.closed
                except ConnectionError:
                    assert code == 1009, "the close may be lost behind what was still sent"
        for cut in (1, 2, 5, 20):
            with Session(server) as session:
                session.socket.sendall(session.frame(TEXT, b"x" * 1000)[:cut])
        # A message in fragments, with a ping between them.
        text = b'{"type":"response.cancel","event_id":"mine"}'
        good.socket.sendall(good.frame(TEXT, text[:9], final=False) + good.frame(9, b"?") + good.frame(0, text[9:]))
        while True:
            first, size = good._bytes(2)
            payload = good._bytes(size if size < 126 else struct.unpack(">H", good._bytes(2))[0])
            if first == 0x8A:
                assert payload == b"?"
                continue
            assert b'"event_id":"mine"' in payload and first == 0x81
            break
        good.say(SAID)
    wait_until(lambda: rested(server), "rest")


def test_the_handshake_wants_a_key_and_a_model():
    secret = "sk-user"
    with Server("--api-key", secret) as server:
        with pytest.raises(Refused) as refused:
            WebSocket(server, REALTIME)
        assert refused.value.status == 401
        bearer = {"Authorization": f"Bearer {secret}"}
        with pytest.raises(Refused) as refused:
            WebSocket(server, REALTIME + "?model=no-such", bearer)
        assert refused.value.status == 404
        with pytest.raises(Refused) as refused:
            WebSocket(server, REALTIME, {**bearer, "Origin": "https://other.example"})
        assert refused.value.status == 403
        with Session(server, headers=bearer):
            pass
        with Session(server, headers={"Sec-WebSocket-Protocol": f"realtime, openai-insecure-api-key.{secret}"}) as page:
            assert page.headers["sec-websocket-protocol"] == "realtime"
        status, headers, body = server.get(REALTIME, headers=bearer)
        assert status == 426 and headers["Upgrade"] == "websocket" and "Upgrade: websocket" in body["error"]["message"]
        # A server that stops says so.
        with Session(server, headers=bearer) as session:
            assert server.stop() == 0
            assert session.read() is None and session.closed[0] == 1001


def test_the_official_client_talks(speaker, tmp_path):
    """OpenAI's client speaks TLS alone, so it is put in front of the server."""
    if not (OPENAI / "node_modules" / "ws").is_dir():
        pytest.fail("tests/e2e/openai/node_modules is missing; wanted: ./scripts/test, which installs it")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    result = subprocess.run(["node", "--test", "realtime.test.mjs"], cwd=OPENAI, capture_output=True, text=True, timeout=900,
                            env={**os.environ, "MILLRACE_URL": f"http://{speaker.host}:{speaker.port}/v1", "MILLRACE_TLS": str(tmp_path)})
    assert result.returncode == 0, result.stdout + result.stderr
