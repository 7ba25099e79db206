"""A complete Qwen3-Omni speaks its answers: the sound is that of Hugging Face transformers, the same in company, streamed, behind a cached
prompt and as a text that is given; and what fails costs its own request alone."""
import base64
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import wave

import pytest

from harness import Server, placement, wait_until
from omni_model import GOLDEN, ROOT, TOKENS, part_of, sound_of, speaking_model, spoken, spoken_body

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
OPENAI = pathlib.Path(__file__).resolve().parent / "openai"
CASES = list(enumerate(spoken()))
MEDIA = [(number, case) for number, case in CASES
         if any(part_of(part)["type"] != "text" for message in case["messages"] for part in message["parts"])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return speaking_model(tmp_path_factory.mktemp("speech") / "speaker")


@pytest.fixture(scope="module")
def speaker(folder):
    with Server(model=folder) as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def golden(name):
    data = (GOLDEN / "speech" / "golden.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])


def body_of(case, **more):
    """transformers speaks neither the last id that its thinker samples at a limit, nor the last frame before one."""
    body = spoken_body(case, max_tokens=len(case["greedy"]) - (0 if case["turn_end"] else 1),
                       talker_repetition_penalty=case["repetition_penalty"])
    if not case["codec_eos"]:
        body["talker_max_new_tokens"] = case["talker_max_new_tokens"] - 1
    return {**body, **more}


def message_of(server, body):
    status, _, found = server.post(CHAT, body)
    assert status == 200, found
    return found["choices"][0]["message"], found


def refused(server, path, body, status=400):
    seen, _, found = server.post(path, body)
    assert seen == status, found
    return found["error"]["message"]


def noise_db(pcm, wanted):
    seen = struct.unpack(f"<{len(pcm) // 2}h", pcm)
    assert len(seen) == len(wanted)
    noise = sum((a / 32768 - b) ** 2 for a, b in zip(seen, wanted))
    return 10 * math.log10(sum(b * b for b in wanted) / noise)


def at_rest(server):
    stages = server.get("/ready")[2]["stages"]
    return all(stage["running"] == 0 and stage["waiting"] == 0 for stage in stages)


@pytest.mark.parametrize("number, case", CASES)
def test_the_sound_is_that_of_transformers(speaker, number, case):
    message, found = message_of(speaker, body_of(case))
    assert noise_db(base64.b64decode(message["audio"]["data"]), golden(f"samples_{number}")) > 40
    assert message["audio"]["transcript"] == message["content"]
    assert found["usage"]["completion_tokens_details"]["audio_tokens"] == len(case["codes"])


def test_streamed_it_has_the_same_bits_beside_the_same_text(speaker):
    body = body_of(CASES[0][1])
    message, _ = message_of(speaker, body)
    pcm, text, transcript, finishes = b"", "", "", []
    for data in speaker.stream(CHAT, body):
        if data == "[DONE]":
            break
        for choice in json.loads(data)["choices"]:
            delta = choice["delta"]
            audio = delta.get("audio") or {}
            pcm += base64.b64decode(audio.get("data") or "")
            transcript += audio.get("transcript") or ""
            text += delta.get("content") or ""
            assert not finishes, "nothing comes behind the finish of text and sound"
            finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert pcm == base64.b64decode(message["audio"]["data"])
    assert text == transcript == message["content"]
    assert finishes == ["length"]


def test_company_and_a_cached_prompt_change_no_sample(speaker):
    bodies = [body_of(case) for _, case in CASES]
    bodies += [{**body, "talker_do_sample": True, "seed": seed} for seed, body in enumerate(bodies)]
    alone = [sound_of(speaker, body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        assert list(pool.map(lambda body: sound_of(speaker, body), bodies)) == alone
    assert speaker.post("/flush_cache", {})[0] == 200
    assert [sound_of(speaker, body) for body in bodies] == alone
    assert len(set(alone)) == len(alone)


def cached_tokens(server, body):
    status, _, found = server.post(CHAT, body)
    assert status == 200, found
    return found["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_conversation_with_audio_goes_on_from_what_is_cached(folder):
    """The rows that the talker wants of earlier pictures and audio are kept; those of a new one alone are computed."""
    with Server("--page-size", "4", model=folder) as server:
        number, case = MEDIA[-1]
        last = body_of(case)
        first = {**last, "messages": last["messages"][:2]}
        silent = {key: value for key, value in first.items() if key not in ("modalities", "audio") and not key.startswith("talker")}
        picture, audio = (case["prompt"].index(TOKENS[name]) // 4 * 4 for name in ("<|image_pad|>", "<|audio_pad|>"))
        assert cached_tokens(server, silent) == 0
        assert cached_tokens(server, silent) > picture
        assert cached_tokens(server, first) == picture, "its rows pass the layers, though its KV is cached"
        assert cached_tokens(server, first) > picture, "its rows are known"
        assert picture < cached_tokens(server, last) <= audio, "up to the audio of the new turn"
        assert cached_tokens(server, last) > audio
        def captured(name):
            return server.metrics()[f"millrace:captured_media_{name}"]
        wait_until(lambda: (captured("total"), captured("cache_hits_total")) == (2, 4), "the rows of two media, found four times")
        assert noise_db(sound_of(server, last), golden(f"samples_{number}")) > 40
        assert server.post("/flush_cache", {})[0] == 200
        wait_until(lambda: captured("cache_bytes") == 0, "an empty cache")
        assert noise_db(sound_of(server, last), golden(f"samples_{number}")) > 40
        assert server.stop() == 0


def test_a_given_text_sounds_as_if_it_had_been_generated(speaker):
    text = "Once upon a time there was a dog."
    def speak(**more):
        body = {"input": text, "voice": "ethan", "response_format": "pcm", "talker_do_sample": False, "talker_max_new_tokens": 20, **more}
        connection = speaker.connection()
        with contextlib.closing(connection):
            connection.request("POST", SPEECH, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
            assert response.status == 200, data
            return data
    sound = speak()
    assert len(sound) > 0 and speak() == sound and speak(voice="chelsie") != sound
    # The same turns with the text as what a chat goes on from; the one id that it generates is spoken too, at the end.
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": text}]
    chat = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, "modalities": ["audio"], "max_tokens": 1,
            "audio": {"voice": "ethan", "format": "pcm16"}, "temperature": 0, "talker_do_sample": False, "talker_max_new_tokens": 4}
    begin = sound_of(speaker, chat)
    assert sound.startswith(begin[:len(begin) // 2])


def test_an_answer_that_is_not_spoken_meets_no_talker(folder):
    with Server(model=folder) as server:
        body = {key: value for key, value in body_of(CASES[0][1]).items() if key not in ("modalities", "audio") and not key.startswith("talker")}
        message, found = message_of(server, body)
        assert "audio" not in message and found["usage"].get("completion_tokens_details", {}).get("audio_tokens", 0) == 0
        sound_of(server, body_of(CASES[0][1]))
        frames = len(CASES[0][1]["codes"])
        wait_until(lambda: server.metrics().get("millrace:speech_frames_total") == frames, "the frames of one answer")
        assert server.stop() == 0


def test_refusals_name_the_field(speaker, folder):
    body = body_of(CASES[0][1])
    assert "wanted one of chelsie, ethan" in refused(speaker, CHAT, {**body, "audio": {"voice": "nobody", "format": "pcm16"}})
    with Server("--speech", "off", model=folder) as silent:
        assert "text alone" in refused(silent, CHAT, body)
        assert len(silent.get("/ready")[2]["stages"]) == 2
        assert silent.stop() == 0


def test_clients_that_hang_up_leave_nothing(speaker):
    body = {**body_of(CASES[0][1]), "stream": True, "talker_max_new_tokens": 400}
    for reads in (0, 1, 3, 8):
        connection = speaker.connection()
        with contextlib.closing(connection):
            connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            for _ in range(reads):
                response.readline()
    wait_until(lambda: at_rest(speaker), "rest of all stages")
    number, case = CASES[0]
    assert noise_db(sound_of(speaker, body_of(case)), golden(f"samples_{number}")) > 40


@pytest.mark.skipif(placement() != "processes", reason="only child processes can be killed from outside")
@pytest.mark.parametrize("victim", ["talker", "vocoder"])
def test_a_stage_that_is_killed_ends_spoken_answers_alone(folder, victim):
    with Server(model=folder) as server:
        body = {**body_of(CASES[0][1]), "talker_max_new_tokens": 900, "talker_do_sample": True, "seed": 3}
        silent = {**body_of(CASES[1][1], modalities=["text"])}
        for key in [key for key in silent if key == "audio" or key.startswith("talker")]:
            del silent[key]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(server.post, CHAT, {**body, "seed": seed}) for seed in range(4)]
            wait_until(lambda: server.metrics().get("millrace:speech_frames_total", 0) > 0, "the first frame")
            before = server.stage(victim)["incarnation"]
            os.kill(server.children()[victim], signal.SIGKILL)
            assert server.post(CHAT, silent)[0] == 200
            ends = [one.result() for one in asked]
        assert all(status in (200, 500, 502, 503) for status, _, _ in ends), ends
        wait_until(lambda: server.stage(victim)["incarnation"] > before and server.ready(), "the stage's restart")
        number, case = CASES[0]
        assert noise_db(sound_of(server, body_of(case)), golden(f"samples_{number}")) > 40
        assert server.stop() == 0


def test_the_example_writes_what_it_gets(speaker, tmp_path):
    def run(*arguments):
        command = ["/usr/bin/python3", ROOT / "examples" / "speak.py", "--url", f"http://{speaker.host}:{speaker.port}", *arguments, "--seed", "1"]
        return subprocess.run(command, capture_output=True, timeout=300)
    done = run("Good morning!", "-o", tmp_path / "out.wav", "--max-tokens", "8")
    assert done.returncode == 0 and done.stderr.strip(), done.stderr
    with wave.open(str(tmp_path / "out.wav")) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24000, 1, 2)
        assert sound.getnframes() > 0
    bare = run("Good morning!", "--max-tokens", "8")
    assert bare.returncode == 0 and len(bare.stdout) > 0 and len(bare.stdout) % 2 == 0
    asked = run("--audio", GOLDEN / "clips" / "sweep.wav", "--max-tokens", "8", "-o", tmp_path / "answer.wav")
    assert asked.returncode == 0, asked.stderr
    with wave.open(str(tmp_path / "answer.wav")) as sound:
        assert sound.getnframes() > 0
    missing = run("--image", tmp_path / "none.png")
    assert missing.returncode == 1 and b"none.png" in missing.stderr
    wrong = run("Good morning!", "--voice", "nobody")
    assert wrong.returncode == 1 and b"wanted one of chelsie, ethan" in wrong.stderr and not wrong.stdout


def test_the_official_client_speaks(speaker):
    if not (OPENAI / "node_modules" / "openai").is_dir():
        pytest.fail("tests/e2e/openai/node_modules is missing; wanted: ./scripts/test, which installs it")
    url = f"http://{speaker.host}:{speaker.port}/v1"
    result = subprocess.run(["node", "--test", "speech.test.mjs"], cwd=OPENAI, capture_output=True, text=True, timeout=600,
                            env={**os.environ, "MILLRACE_URL": url})
    assert result.returncode == 0, result.stdout + result.stderr
