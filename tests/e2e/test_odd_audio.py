"""Files of audio that are short, strange, broken or not what they claim: each is heard or gets one clear error, in every route that takes
audio, and nothing of it is left in a book."""
import json
import math
import struct

import pytest

from harness import Server, wait_until
from omni_model import audio, clip, omni_model
from test_omni import ask, upload, wav
from test_speech import at_rest
from vision_model import picture


@pytest.fixture(scope="module")
def omni(tmp_path_factory):
    with Server(model=omni_model(tmp_path_factory.mktemp("odd") / "thinker")) as running:
        yield running
        wait_until(lambda: at_rest(running) and running.all_pages_back(), "rest, with all pages back")
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def header(form=1, channels=1, rate=16000, bits=16, data=b"", claimed=None):
    """A WAV whose header says what it is told to say."""
    size = len(data) if claimed is None else claimed
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", form, channels, rate & 0xFFFFFFFF, rate * block & 0xFFFFFFFF, block, bits)
    return b"RIFF" + struct.pack("<I", min(36 + size, 0xFFFFFFFF)) + b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", size) + data


def floats(*values):
    return header(3, bits=32, data=struct.pack(f"<{len(values)}f", *values))


TONE = [0.3 * math.sin(0.2 * i) for i in range(8000)]
SECOND = struct.pack("<16000h", *(int(9000 * math.sin(0.2 * i)) for i in range(16000)))

HEARD = {
    "8 kHz": wav(SECOND[:16000], rate=8000),
    "192 kHz": wav(SECOND * 3, rate=192000),
    "8 channels": wav(SECOND, channels=8),
    "floats": floats(*TONE),
    "loud floats": floats(*(100 * value for value in TONE)),
    "the smallest floats": floats(*([1e-45] * 8000)),
    "a size that is not known": header(data=SECOND, claimed=0xFFFFFFFF),
}

EIGHT_HOURS = 8 * 3600 * 16000 * 2
# What the error has to name: the value seen, or what was wanted.
REFUSED = {
    "no bytes": (b"", "0 bytes"),
    "no samples": (wav(b""), "0 samples"),
    "one sample": (wav(b"\0\1"), "1 samples"),
    "two samples": (wav(b"\0\1\0\2"), "2 samples"),
    "NaN": (floats(*TONE[:4000], math.nan, *TONE[4000:]), "nan"),
    "infinity": (floats(*TONE, math.inf), "inf"),
    "a float over the limit": (floats(*TONE, 1e30), "1e+30"),
    "a header of 8 hours": (header(data=SECOND, claimed=EIGHT_HOURS), str(EIGHT_HOURS)),
    "a header of 8 hours at 8 bits": (header(bits=8, data=SECOND, claimed=EIGHT_HOURS // 2), str(EIGHT_HOURS // 2)),
    "9 channels": (wav(SECOND, channels=9)[:44 + 18 * 1000], "9"),
    "0 channels": (header(channels=0, data=SECOND), "0"),
    "rate 0": (header(rate=0, data=SECOND), "0"),
    "rate 2^32 - 1": (header(rate=0xFFFFFFFF, data=SECOND), ""),
    "7 kHz": (wav(SECOND, rate=7000), "7000"),
    "cut in its header": (wav(SECOND)[:30], ""),
    "cut in its samples": (wav(SECOND)[:10000], ""),
    "cut FLAC": (None, ""),
    "a picture": (picture("gradient.png"), ""),
    "a text": (b"RIFF is how this text begins, and it is no WAV", ""),
    "zeros": (bytes(10000), ""),
}


def of(case):
    if case == "cut FLAC":
        from omni_model import ROOT
        return (ROOT / "tests" / "golden" / "audio" / "speech.flac").read_bytes()[:5000]
    return REFUSED[case][0]


@pytest.mark.parametrize("case", HEARD)
def test_it_is_heard(omni, case):
    found = omni.chat_answer(ask(audio(HEARD[case]), max_tokens=2))
    assert found["usage"]["completion_tokens"] == 2
    status, _, body = upload(omni, [("file", "a.wav", HEARD[case]), ("max_tokens", None, b"2")])
    assert status == 200, body


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_what_was_seen(omni, case):
    data, wanted = of(case), REFUSED[case][1]
    message = omni.chat_refusal(ask(audio(data), max_tokens=2))
    assert "messages[1].content[0]" in message and wanted in message.lower(), message
    status, _, body = upload(omni, [("file", "a.wav", data), ("max_tokens", None, b"2")])
    assert status == 400 and "file" in json.loads(body)["error"]["message"], body
    # In a stream the error is the answer too, not an event behind a 200.
    status, _, body = omni.post("/v1/chat/completions", {**ask(audio(data), max_tokens=2), "stream": True})
    assert status == 400, body


def test_a_wrong_name_of_a_format_is_no_matter_where_the_bytes_are_clear(omni):
    for form in ("mp3", "flac", "ogg", "wav"):
        omni.chat_answer(ask(audio(clip("click.wav"), form), max_tokens=2))


def test_what_is_refused_costs_the_others_nothing(omni):
    good = ask("click.wav", max_tokens=8)
    alone = omni.chat_answer(good)["choices"][0]["message"]["content"]
    for case in REFUSED:
        omni.post("/v1/chat/completions", ask(audio(of(case)), max_tokens=2))
    assert omni.chat_answer(good)["choices"][0]["message"]["content"] == alone
    wait_until(lambda: at_rest(omni) and omni.all_pages_back(), "rest, with all pages back")
