"""Writes the sound files of tests/golden/audio and files.json: what other decoders find in them.

Run from the repository's root, with Debian's sox, flac, vorbis-tools, opus-tools, lame and mpg123:
    /usr/bin/python3 -W ignore tests/oracles/audio_files.py SPEECH.wav

SPEECH.wav is one sentence of a LibriVox recording, 16 kHz mono (tests/golden/audio/README.md). "speech": files of the
encoders, with the rate, channels and frames that another decoder of the format counts (flac, oggdec, opusdec, mpg123).
"wav": short files by sox of each encoding (base64), with the CRC-32 of their samples as little-endian f32, mixed down by
numpy's rule, decoded here by the definition of the encoding (A-law and u-law: Python's audioop).
"""
import audioop
import base64
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import wave
import zlib

OUT = pathlib.Path("tests/golden/audio")
SPEECH = sys.argv[1]
F32 = lambda value: struct.unpack("<f", struct.pack("<f", value))[0]


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, **options).stdout


def shape_of(path):
    with wave.open(str(path)) as file:
        return dict(rate=file.getframerate(), channels=file.getnchannels(), frames=file.getnframes())


def speech_files(folder):
    wide, low = folder / "wide.wav", folder / "low.wav"
    run("sox", "-D", SPEECH, "-r", "44100", "-c", "2", wide, "vol", "0.9")
    run("sox", "-D", SPEECH, "-r", "22050", low, "vol", "0.9")
    run("flac", "-s", "-f", "-8", "--no-padding", SPEECH, "-o", OUT / "speech.flac")
    run("oggenc", "-Q", "-q", "2", "-s", "1", wide, "-o", OUT / "speech.ogg")
    run("opusenc", "--quiet", "--bitrate", "96", "--serial", "1", "--discard-comments", wide, OUT / "speech.opus")
    run("lame", "--quiet", "-V", "5", wide, OUT / "speech.mp3")
    run("lame", "--quiet", "-t", "-b", "32", low, OUT / "plain.mp3")  # without a header that states its length
    back = folder / "back.wav"
    run("flac", "-s", "-f", "-d", OUT / "speech.flac", "-o", back)
    yield "speech.flac", shape_of(back)
    run("oggdec", "-Q", OUT / "speech.ogg", "-o", back)
    yield "speech.ogg", shape_of(back)
    run("opusdec", "--quiet", "--rate", "48000", OUT / "speech.opus", back)
    yield "speech.opus", shape_of(back)
    for name in ("speech.mp3", "plain.mp3"):
        run("mpg123", "-q", "-w", back, OUT / name)
        yield name, shape_of(back)


def integers(data, width):
    for at in range(0, len(data), width):
        yield int.from_bytes(data[at:at + width], "little", signed=True) / (1 << (8 * width - 1))


def samples_of(data, kind):
    if kind == "u8":
        return [(byte - 128) / 128 for byte in data]
    if kind in ("f32", "f64"):
        return [value[0] for value in struct.iter_unpack("<f" if kind == "f32" else "<d", data)]
    if kind in ("alaw", "ulaw"):
        return list(integers((audioop.alaw2lin if kind == "alaw" else audioop.ulaw2lin)(data, 2), 2))
    return list(integers(data, int(kind[1:]) // 8))


def mixed_down(values, channels):
    for at in range(0, len(values), channels):
        total = F32(values[at])
        for value in values[at + 1:at + channels]:
            total = F32(total + F32(value))
        yield F32(total / channels)


def data_chunk(file):
    at = 12
    while file[at:at + 4] != b"data":
        size = struct.unpack_from("<I", file, at + 4)[0]
        at += 8 + size + size % 2
    return file[at + 8:at + 8 + struct.unpack_from("<I", file, at + 4)[0]]


def wav_files(folder):
    encodings = dict(u8=("-b", 8, "-e", "unsigned"), i16=("-b", 16), i24=("-b", 24), i32=("-b", 32, "-e", "signed"),
                     f32=("-b", 32, "-e", "float"), f64=("-b", 64, "-e", "float"), alaw=("-e", "a-law"), ulaw=("-e", "mu-law"))
    path = folder / "one.wav"
    for kind, options in encodings.items():
        for channels in (1, 2, 3) if kind in ("i16", "i24", "f32") else (1, 2):
            run("sox", "-D", SPEECH, *options, "-c", channels, path, "trim", "8000s", "211s", "vol", "1.7")
            if channels > 1:  # channels that differ
                run("sox", "-D", path, *options, folder / "two.wav", "delay", *(f"{7 * c}s" for c in range(channels)))
                path.write_bytes((folder / "two.wav").read_bytes())
            file = path.read_bytes()
            values = samples_of(data_chunk(file), kind)
            mono = b"".join(struct.pack("<f", value) for value in mixed_down(values, channels))
            yield dict(name=f"{kind} {channels}", channels=channels, frames=len(values) // channels, crc=zlib.crc32(mono),
                       data=base64.b64encode(file).decode())


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    speech = dict(speech_files(folder))
    wav = list(wav_files(folder))
with open(OUT / "files.json", "w") as file:
    file.write('{"speech": ' + json.dumps(speech, indent=1) + ',\n"wav": [\n' + ",\n".join(json.dumps(one) for one in wav) + "]}\n")
print(speech, len(wav), "WAV files")
