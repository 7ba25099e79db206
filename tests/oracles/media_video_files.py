"""Writes tests/golden/media/video/rising.{mp4,gif,webm}, turned.mp4, deep.mp4 and resized.webm: eleven frames of 64 x 48 pixels, four a second, the
same in each; the first two without loss. turned.mp4 has sound and is shown turned by a quarter; deep.mp4 has 10 bits a sample; the frames of
resized.webm have 96 x 72 pixels from the sixth on.

Run from the repository's root with Debian 12's ffmpeg:
    python3 tests/oracles/media_video_files.py
"""
import pathlib
import subprocess

OUT = pathlib.Path("tests/golden/media/video")
FRAMES, FPS, WIDTH, HEIGHT = 11, 4, 64, 48


def pixel(frame, x, y):
    return 20 * frame + 20, 60 + 40 * ((x // 16 + y // 16 + frame) % 2), 200 - 15 * frame


def frames():
    """The bytes of all frames, RGB."""
    return bytes(value for frame in range(FRAMES) for y in range(HEIGHT) for x in range(WIDTH) for value in pixel(frame, x, y))


def ffmpeg(name, *options):
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(FPS), "-i", "-"]
    subprocess.run(["ffmpeg", "-v", "error", "-y", *given, *options, "-bitexact", "-threads", "1", str(OUT / name)], input=frames(), check=True)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    ffmpeg("rising.mp4", "-c:v", "libx264rgb", "-qp", "0")
    ffmpeg("rising.gif", "-vf", "split[a][b];[a]palettegen=stats_mode=full[p];[b][p]paletteuse=dither=none")
    ffmpeg("rising.webm", "-c:v", "libvpx-vp9", "-b:v", "200k", "-pix_fmt", "yuv420p")
    ffmpeg("still.mp4", "-f", "lavfi", "-i", "sine=duration=2.75:sample_rate=8000", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-c:a", "aac", "-b:a", "16k")
    turn = ["-c", "copy", "-metadata:s:v:0", "rotate=90", "-bitexact", str(OUT / "turned.mp4")]
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-i", str(OUT / "still.mp4"), *turn], check=True)
    (OUT / "still.mp4").unlink()
    ffmpeg("deep.mp4", "-c:v", "libx264", "-pix_fmt", "yuv420p10le")
    parts = {"begin.webm": "trim=end_frame=5", "rest.webm": "trim=start_frame=5,setpts=PTS-STARTPTS,scale=96:72"}
    for name, cut in parts.items():
        ffmpeg(name, "-vf", cut, "-c:v", "libvpx-vp9", "-b:v", "200k", "-pix_fmt", "yuv420p")
    (OUT / "parts.txt").write_text("".join(f"file {name}\n" for name in parts))
    joined = ["-f", "concat", "-i", str(OUT / "parts.txt"), "-c", "copy", "-bitexact", str(OUT / "resized.webm")]
    subprocess.run(["ffmpeg", "-v", "error", "-y", *joined], check=True)
    for name in (*parts, "parts.txt"):
        (OUT / name).unlink()
    for name in ("rising.mp4", "rising.gif"):
        back = subprocess.run(["ffmpeg", "-v", "error", "-i", str(OUT / name), "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                              capture_output=True, check=True).stdout
        assert back == frames(), name
