"""Writes tests/golden/vision/dense/video.json and video_preprocessor_config.json: conversations with the videos of tests/golden/media/video for
the served model that vision_tiny.py made, and for each the ids of the prompt and those that transformers generates greedily. Its processor gets the
frames as arrays, and chooses among them; none is resized.

Run from the repository's root, in the root that holds transformers 5.12, behind media_video_files.py:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/vision_video.py
"""
import json
import pathlib

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from transformers import (AutoModelForImageTextToText, PreTrainedTokenizerFast, Qwen2VLImageProcessorPil, Qwen3VLProcessor, Qwen3VLVideoProcessor)
from transformers.video_utils import VideoMetadata

import media_video_files as videos

OUT = pathlib.Path("tests/golden/vision")
STEPS = 16
MIN_GAP = 2e-3
TOKENS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
PIXELS = dict(patch_size=8, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
VIDEO = dict(PIXELS, size=dict(shortest_edge=4 * 16 * 16, longest_edge=64 * 48 * 16), fps=2, min_frames=4, max_frames=768)
SYSTEM = "You tell of pictures."
CONVERSATIONS = [["What happens?", "rising.mp4"], ["rising.gif", "And beside", "gradient.png", "this one?"], ["Twice:", "rising.mp4", "rising.gif"]]
WORDINGS = ["", " Again.", " And now?", " So?", " Tell me more."]  # behind the last part: the one with the widest gaps

tokenizer = Tokenizer.from_file("models/demo/tokenizer.json")
tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TOKENS])
torch.set_num_threads(1)
model = AutoModelForImageTextToText.from_pretrained(OUT / "dense", dtype=torch.float32, attn_implementation="eager").eval()
processor = Qwen3VLProcessor(
    image_processor=Qwen2VLImageProcessorPil(**PIXELS, size=dict(shortest_edge=4 * 16 * 16, longest_edge=16 * 16 * 16)),
    tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer), video_processor=Qwen3VLVideoProcessor(**VIDEO))
frames = np.frombuffer(videos.frames(), np.uint8).reshape(videos.FRAMES, videos.HEIGHT, videos.WIDTH, 3)


def run(parts):
    content, given, pictures, metadata = "", [], [], []
    for part in parts:
        if part.endswith((".mp4", ".gif")):
            content += "<|vision_start|><|video_pad|><|vision_end|>"
            given.append(frames)
            metadata.append(VideoMetadata(total_num_frames=videos.FRAMES, fps=float(videos.FPS), duration=videos.FRAMES / videos.FPS,
                                          width=videos.WIDTH, height=videos.HEIGHT))
        elif part.endswith(".png"):
            content += "<|vision_start|><|image_pad|><|vision_end|>"
            pictures.append(Image.open(OUT / "pictures" / part).convert("RGB"))
        else:
            content += part
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    inputs = processor(text=[text], videos=given, video_metadata=metadata, images=pictures or None, return_tensors="pt",
                       add_special_tokens=False)
    with torch.no_grad():
        greedy = model.generate(**inputs, max_new_tokens=STEPS, do_sample=False, pad_token_id=0, eos_token_id=None, return_dict_in_generate=True,
                                output_scores=True)
    gaps = [float(torch.topk(s[0], 2).values.diff().abs()) / float(s[0].max() - s[0].min()) for s in greedy.scores]
    ids = inputs["input_ids"][0].tolist()
    new = greedy.sequences[0, len(ids):].tolist()
    print(parts, len(ids), "grids", inputs["video_grid_thw"].tolist(), "gap", min(gaps), repr(tokenizer.decode(ids, skip_special_tokens=False)[:300]))
    return min(gaps), dict(parts=parts, prompt=ids, greedy=new, text=tokenizer.decode(new, skip_special_tokens=True))


out = []
for parts in CONVERSATIONS:
    gap, found = max((run(parts + [words] * bool(words)) for words in WORDINGS), key=lambda one: one[0])
    assert gap >= MIN_GAP, parts
    out.append(found)
(OUT / "dense" / "video.json").write_text(json.dumps(dict(system=SYSTEM, conversations=out), indent=1) + "\n")
(OUT / "dense" / "video_preprocessor_config.json").write_text(json.dumps(VIDEO, indent=1) + "\n")
