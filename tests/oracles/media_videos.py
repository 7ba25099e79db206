"""Writes tests/golden/media/video/video.json: which frames transformers chooses of a video, their times, and the size that it brings them to.

Run from the repository's root, in the root that holds transformers 5.12:
    oracle python3 tests/oracles/media_videos.py

"samples": frames and fps of a video, fps, least and most frames of the processor; the indices that sample_frames() gives and the times of each
two of them. "sizes": smart_resize() of frames, height and width between least and most pixels; null where it refuses. "files": what
media_video_files.py wrote.
"""
import json
import pathlib
import random

import numpy as np
from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize
from transformers.video_utils import VideoMetadata

OUT = pathlib.Path("tests/golden/media/video/video.json")
draw = random.Random(5)


def sample(frames, fps, target, least, most):
    processor = Qwen3VLVideoProcessor(min_frames=least, max_frames=most, fps=target)
    indices = processor.sample_frames(VideoMetadata(total_num_frames=frames, fps=fps), fps=None)
    times = Qwen3VLProcessor._calculate_timestamps(None, np.array(indices), fps, 2)
    return dict(frames=frames, fps=fps, target=target, min=least, max=most, indices=[int(i) for i in indices], times=times)


def size(frames, height, width, least, most):
    try:
        out = smart_resize(frames, height, width, 2, 32, least, most)
    except ValueError:
        out = None
    return dict(frames=frames, height=height, width=width, least=least, most=most, size=out)


samples = [sample(*case) for case in [(1, 25.0, 2, 4, 768), (2, 25.0, 2, 4, 768), (5, 30.0, 2, 4, 768), (11, 4.0, 2, 4, 768), (300, 29.97, 2, 4, 768),
                                      (100000, 60.0, 2, 4, 100), (10, 0.5, 2, 4, 768), (47, 24000 / 1001, 2, 1, 768)]]
for _ in range(100):
    samples.append(sample(draw.randint(1, 2000), draw.choice([24.0, 25.0, 30000 / 1001, 10.0, draw.uniform(0.3, 120)]), draw.choice([1, 2, 3.5, 24]),
                          draw.choice([1, 2, 4]), draw.choice([4, 9, 40])))
sizes = []
for _ in range(150):
    sizes.append(size(draw.randint(1, 300), draw.randint(16, 2000), draw.randint(16, 2000), draw.choice([4096, 131072]),
                      draw.choice([786432, 25165824])))
sizes += [size(4, 32, 6432, 4096, 786432), size(4, 32, 6400, 4096, 786432), size(768, 1080, 1920, 4096, 25165824), size(1, 32, 32, 131072, 786432)]
files = [dict(name=f"rising.{kind}", frames=11, fps=4, width=64, height=48) for kind in ("mp4", "gif", "webm")]
files.append(dict(name="turned.mp4", frames=11, fps=4, width=48, height=64))
files += [dict(name=name, frames=11, fps=4, width=64, height=48) for name in ("deep.mp4", "resized.webm")]
OUT.write_text(json.dumps(dict(samples=samples, sizes=sizes, files=files)) + "\n")
