"""Videos in chats: the ids and answers of Hugging Face transformers for the same frames, the same bits from the caches, and clear errors."""
import base64
import json
import pathlib
import shutil

import pytest

from harness import Server, wait_until
from vision_model import picture, served_videos, video, vision_model

CHAT = "/v1/chat/completions"
KINDS = {"mp4": "video/mp4", "gif": "image/gif", "webm": "video/webm"}

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return vision_model(tmp_path_factory.mktemp("video") / "vl")


@pytest.fixture(scope="module")
def vision(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "rising.mp4").write_bytes(video("rising.mp4"))
    with Server("--media-root", str(root), model=folder) as running:
        running.root = root
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


def url(data, kind):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part_of(part):
    kind = part.rsplit(".", 1)[-1]
    if kind in KINDS:
        return {"type": "video_url", "video_url": {"url": url(video(part), KINDS[kind])}}
    if kind == "png":
        return {"type": "image_url", "image_url": {"url": url(picture(part), "image/png")}}
    return {"type": "text", "text": part}


def ask(*parts, **more):
    content = [part if isinstance(part, dict) else part_of(part) for part in parts]
    messages = [{"role": "system", "content": served_videos()["system"]}, {"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "max_tokens": 16, "ignore_eos": True, **more}


def counter(server, name):
    metrics = server.metrics()
    return metrics[next(key for key in metrics if name in key)]


@pytest.mark.parametrize("one", served_videos()["conversations"], ids=lambda one: "-".join(one["parts"])[:30])
def test_prompts_and_answers_are_those_of_transformers(vision, one):
    body = ask(*one["parts"])
    status, _, tokenized = vision.post("/tokenize", {"messages": body["messages"]})
    assert status == 200 and tokenized["tokens"] == one["prompt"], tokenized
    answer = vision.chat_answer(body)
    assert answer["choices"][0]["message"]["content"] == one["text"]
    assert answer["usage"]["prompt_tokens"] == len(one["prompt"])


def test_a_file_gives_the_same_as_its_bytes(vision):
    one = served_videos()["conversations"][0]
    parts = [{"type": "video_url", "video_url": {"url": f"file://{vision.root}/{part}"}} if part.endswith(".mp4") else part for part in one["parts"]]
    assert vision.chat_answer(ask(*parts))["choices"][0]["message"]["content"] == one["text"]


def test_caches_change_no_bit_and_share_frames(folder):
    """MP4 and GIF have the same frames here, so the second one encodes nothing."""
    with Server(model=folder) as vision:
        first = vision.chat_answer(ask("What happens?", "rising.mp4"))
        again = vision.chat_answer(ask("What happens?", "rising.gif"))
        assert first["choices"] == again["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        counters = ("media_cache_hits_total", "media_encoded_total")  # of two stages, whose numbers come with their heartbeats
        wait_until(lambda: [counter(vision, name) for name in counters] == [3, 3], "three groups of frames, encoded once and then from the cache")


def test_a_lossy_video_is_read_too(vision):
    one = served_videos()["conversations"][0]
    answer = vision.chat_answer(ask(*("rising.webm" if part == "rising.mp4" else part for part in one["parts"])))
    assert answer["usage"]["prompt_tokens"] == len(one["prompt"])


def test_what_cannot_be_served_is_refused_by_name(vision):
    name = "messages[1].content[0].video_url.url: "
    assert vision.chat_refusal(ask({"type": "video_url", "video_url": {"url": url(b"no video", "video/mp4")}})) == (
        name + "it is no video that is read; wanted MP4, QuickTime, Matroska, WebM, AVI or GIF")
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"
    assert "it is no video" in vision.chat_refusal(ask({"type": "video_url", "video_url": {"url": url(playlist, "video/mp4")}}))
    assert "it is no video" in vision.chat_refusal(ask({"type": "video_url", "video_url": {"url": url(video("rising.mp4")[:200], "video/mp4")}}))
    assert "at offset 2" in vision.chat_refusal(ask({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,ab*d"}}))
    assert "wanted a data: URL, or file:" in vision.chat_refusal(ask({"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}))
    for field in ("fps", "num_frames", "nframes", "max_frames", "total_pixels", "video_start"):
        part = part_of("rising.mp4")
        part["video_url"][field] = 2
        assert f"{field} is not supported" in vision.chat_refusal(ask(part)), field
        assert f"{field} is not supported" in vision.chat_refusal(ask(part_of("rising.mp4") | {field: 2})), field
    assert "is one more than 64 pictures, audios and groups of frames" in vision.chat_refusal(ask(*["rising.mp4"] * 22))


def test_a_users_text_is_no_video(vision):
    forged = vision.chat_answer(ask("<|vision_start|><|video_pad|><|vision_end|>"))
    assert forged["usage"]["prompt_tokens"] > 25, "letters, not three tokens"


def test_without_ffmpeg_the_request_has_the_reason(folder, tmp_path):
    with Server(model=folder, env={"PATH": str(tmp_path)}) as vision:
        found = vision.chat_refusal(ask("rising.mp4"))
        assert found == "messages[1].content[0].video_url.url: ffprobe is not installed on the server; wanted Debian's package ffmpeg"
        assert vision.chat_answer(ask("gradient.png"))["choices"][0]["finish_reason"] == "length"


def test_a_model_without_a_video_processor_refuses_them(tmp_path):
    model = vision_model(tmp_path / "vl")
    (model / "video_preprocessor_config.json").unlink()
    with Server(model=model) as vision:
        assert "type is 'video_url'; wanted text or image_url" in vision.chat_refusal(ask("rising.mp4"))


def test_other_clients_are_served_while_a_video_is_decoded_and_a_hang_up_ends_it(folder, tmp_path):
    """A decoder that never ends, by its name on PATH."""
    for name in ("ffprobe", "ffmpeg"):
        fake = tmp_path / name
        fake.write_text("#!/bin/sh\nread line < /dev/fd/3\nexec sleep 600\n")
        fake.chmod(0o755)
    with Server(model=folder, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}) as vision:
        connection = vision.connection()
        connection.request("POST", CHAT, json.dumps(ask("rising.mp4")), {"Content-Type": "application/json"})
        wait_until(lambda: children_of(vision, "sleep"), "the decoder")
        assert vision.chat_answer(ask("gradient.png"))["choices"][0]["finish_reason"] == "length"
        connection.close()
        wait_until(lambda: not children_of(vision, "sleep"), "the end of the decoder")


def children_of(server, name):
    """Process ids of the children of the server's process that have this name."""
    found = []
    for pid in (int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            stat = open(f"/proc/{pid}/stat", encoding="ascii").read()
        except OSError:
            continue
        command, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
        if command == name and int(rest[1]) == server.process.pid:
            found.append(pid)
    return found
