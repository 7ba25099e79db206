"""The thinker of Qwen3-Omni is served: text, pictures and audio give the ids of Hugging Face transformers, beside tensors of a talker that are
not read; audio comes as parts of a chat or as an uploaded file."""
import concurrent.futures
import http.client
import json
import wave
import io

import pytest

from harness import Server, wait_until
from omni_model import ROOT, audio, clip, omni_model, part_of, served, speaking_model, spoken, text_of
from vision_model import picture

CHAT = "/v1/chat/completions"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
SPEECH = ROOT / "tests" / "golden" / "audio"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return omni_model(tmp_path_factory.mktemp("omni") / "thinker")


@pytest.fixture(scope="module")
def omni(folder):
    with Server(model=folder) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def ask(*parts, **more):
    messages = [{"role": "system", "content": served()["system"]},
                {"role": "user", "content": [part_of(part) if isinstance(part, str) else part for part in parts]}]
    return {"messages": messages, "temperature": 0, "max_tokens": 16, "ignore_eos": True, "logprobs": True, **more}


def tokens_of(found):
    return [one["token"] for one in found["choices"][0]["logprobs"]["content"]], found["choices"][0]["message"]["content"]


def upload(server, parts, path=TRANSCRIPTIONS, content_type=None):
    """(status, content type, body) of a form; parts: (name, filename or None, bytes)."""
    boundary = "form-boundary"
    body = b""
    for name, filename, content in parts:
        end = f'; filename="{filename}"' if filename else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{end}\r\n\r\n'.encode() + content + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    try:
        connection.request("POST", path, body, {"Content-Type": content_type or f"multipart/form-data; boundary={boundary}"})
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read().decode()
    finally:
        connection.close()


def wav(samples, rate=16000, channels=1):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels), file.setsampwidth(2), file.setframerate(rate)
        file.writeframes(samples)
    return out.getvalue()


def test_prompts_and_answers_are_those_of_transformers(omni):
    assert len(served()["conversations"]) >= 6
    for one in served()["conversations"]:
        body = ask(*one["parts"])
        status, _, tokenized = omni.post("/tokenize", {"messages": body["messages"]})
        assert status == 200 and tokenized["tokens"] == one["prompt"]
        found = omni.chat_answer(body)
        assert found["choices"][0]["message"]["content"] == one["text"], one["parts"]
        assert found["usage"]["prompt_tokens"] == len(one["prompt"])


def test_a_complete_model_writes_the_texts_of_transformers(tmp_path):
    assert len(spoken()) >= 8
    with Server(model=speaking_model(tmp_path / "model")) as server:
        for one in spoken():
            messages = [{"role": message["role"], "content": [part_of(part) for part in message["parts"]]}
                        for message in one["messages"]]
            status, _, tokenized = server.post("/tokenize", {"messages": messages})
            assert status == 200 and tokenized["tokens"] == one["prompt"]
            found = server.chat_answer({"messages": messages, "temperature": 0, "max_tokens": one["max_tokens"]})
            assert found["choices"][0]["message"]["content"] == one["text"]
            assert found["choices"][0]["finish_reason"] == ("stop" if one["turn_end"] else "length")


def test_an_audio_url_and_a_part_are_the_same(omni):
    given = tokens_of(omni.chat_answer(ask("What do you hear?", "sweep.wav")))
    for url in (f"data:audio/wav;base64,{text_of(clip('sweep.wav'))}", f"data:;base64,{text_of(clip('sweep.wav'))}"):
        for value in (url, {"url": url}):
            assert tokens_of(omni.chat_answer(ask("What do you hear?", {"type": "audio_url", "audio_url": value}))) == given
    inside = {"type": "input_audio", "input_audio": {"data": f"data:audio/wav;base64,{text_of(clip('sweep.wav'))}"}}
    assert tokens_of(omni.chat_answer(ask("What do you hear?", inside))) == given


def test_a_stream_has_the_same_text(omni):
    body = ask("click.wav", "tall.webp")
    events = [json.loads(event) for event in omni.stream(CHAT, {**body, "stream": True}) if event != "[DONE]"]
    assert "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"]) == \
        omni.chat_answer(body)["choices"][0]["message"]["content"]


def test_company_caches_and_flushes_change_nothing(folder):
    bodies = [ask(*one["parts"], seed=7, temperature=0.9) for one in served()["conversations"]]
    with Server(model=folder) as server:
        alone = [tokens_of(server.chat_answer(body)) for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert [tokens_of(found) for found in pool.map(lambda body: server.chat_answer(body), bodies * 2)] == alone * 2
        found = server.chat_answer(bodies[2])  # two audios
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert tokens_of(found) == alone[2]
        assert server.post("/flush_cache", {})[0] == 200
        assert [tokens_of(server.chat_answer(body)) for body in bodies] == alone
        wait_until(server.all_pages_back, "rest")


def test_every_format_is_heard(omni):
    seconds = {}
    for name in ("speech.flac", "speech.mp3", "speech.ogg", "speech.opus"):
        data = (SPEECH / name).read_bytes()
        found = omni.chat_answer(ask(audio(data, name.rsplit(".", 1)[-1]), max_tokens=2))
        seconds[name] = found["usage"]["prompt_tokens"]
    assert max(seconds.values()) - min(seconds.values()) <= 2 < min(seconds.values()), seconds  # MP3 pads a frame or two


def test_what_cannot_be_heard_is_refused_by_name(omni):
    where = "messages[1].content[0]"
    silence = bytes(2 * 16000)
    for part, wanted in [
            (audio(b""), where), (audio(b"RIFF"), where), (audio(b"\0" * 100), where), (audio(wav(b"")), where),
            (audio(clip("sweep.wav")[:100]), where), (audio(picture("gradient.png")), where), (audio(wav(silence, rate=100)), "100"),
            (audio(wav(silence), "midi"), "format is 'midi'"),
            ({"type": "input_audio"}, f"{where}.input_audio is missing"),
            ({"type": "input_audio", "input_audio": {}}, "data is no string"),
            ({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}, "input_audio.data"),
            ({"type": "audio_url", "audio_url": {}}, "audio_url.url is no string"),
            ({"type": "video_url", "video_url": {"url": "data:,"}}, "type is 'video_url'"),
            ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text_of(clip('click.wav'))}"}}, where)]:
        assert wanted in omni.chat_refusal(ask(part)), part
    assert "data: URL" in omni.chat_refusal(ask({"type": "audio_url", "audio_url": "http://localhost/a.wav"}))
    omni.chat_answer(ask("click.wav"))


def test_a_file_is_transcribed(omni):
    question = "Transcribe the audio into text."
    status, _, chat = omni.post(CHAT, {"messages": [{"role": "user", "content": [part_of("sweep.wav"), part_of(question)]}],
                                       "temperature": 0, "max_tokens": 12})
    assert status == 200
    text, usage = chat["choices"][0]["message"]["content"].strip(), chat["usage"]
    file = ("file", "sweep.wav", clip("sweep.wav"))
    short = ("max_tokens", None, b"12")
    status, kind, body = upload(omni, [file, ("model", None, b"thinker"), short])
    assert status == 200 and kind == "application/json", body
    found = json.loads(body)
    assert found["text"] == text
    assert found["usage"] == {"type": "tokens", "input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"],
                              "input_token_details": {"text_tokens": usage["prompt_tokens"] - 15, "audio_tokens": 15},
                              "total_tokens": usage["total_tokens"]}
    status, kind, body = upload(omni, [file, short, ("response_format", None, b"text")])
    assert status == 200 and kind.startswith("text/plain") and body == text + "\n"
    status, kind, body = upload(omni, [file, short, ("stream", None, b"true")])
    assert status == 200 and kind.startswith("text/event-stream"), body
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    assert events[-1]["type"] == "transcript.text.done" and events[-1]["text"] == text
    assert "".join(event["delta"] for event in events[:-1]).strip() == text
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    # The instruction differs, and so does the answer of these random weights; what is asked for is what counts.
    for more, path in [([("language", None, b"de")], TRANSCRIPTIONS), ([("prompt", None, b"names: Ada")], TRANSCRIPTIONS),
                       ([], "/v1/audio/translations")]:
        assert upload(omni, [file, short, *more], path)[0] == 200


def test_forms_that_cannot_be_served_are_refused(omni):
    file = ("file", "a.wav", clip("click.wav"))
    for parts, wanted, status in [
            ([], "file is missing", 400), ([file, file], "file is there twice", 400), ([("file", "a", b"noise")], "file", 400),
            ([file, ("language", None, b"tlh")], "language is 'tlh'", 400), ([file, ("temperature", None, b"hot")], "temperature is a string", 400),
            ([file, ("temperature", None, b"9")], "temperature is 9", 400), ([file, ("model", None, b"other")], "other", 404),
            ([file, ("response_format", None, b"srt")], "response_format is 'srt'", 400),
            ([file, ("timestamp_granularities[]", None, b"word")], "timestamp_granularities[]", 400),
            ([file, ("max_dynamic_patch", None, b"2")], "max_dynamic_patch is not supported", 400),
            ([file, ("mm_processor_kwargs", None, b'{"x": 1}')], "mm_processor_kwargs is not supported", 400),
            ([file, ("use_beam_search", None, b"true")], "use_beam_search is not supported", 400),
            ([file, ("frequency_penalty", None, b"3")], "frequency_penalty is 3", 400),
            ([file, ("prompt", None, b"x" * 20000)], "prompt has 20000 bytes", 400)]:
        seen, _, body = upload(omni, parts)
        assert seen == status and wanted in json.loads(body)["error"]["message"], (parts, seen, body)
    assert upload(omni, [file], content_type="application/json")[0] == 400
    assert upload(omni, [file], content_type="multipart/form-data")[0] == 400
    assert upload(omni, [file, ("language", None, b"en")], "/v1/audio/translations")[0] == 400


def test_a_model_without_ears_refuses_audio():
    with Server() as text:
        status, _, found = text.post(CHAT, ask("click.wav"))
        assert status == 400 and "text only" in found["error"]["message"], found
        seen, _, body = upload(text, [("file", "a.wav", clip("click.wav"))])
        assert seen == 400 and "takes no audio" in json.loads(body)["error"]["message"]
