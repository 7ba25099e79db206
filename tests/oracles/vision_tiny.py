"""Writes tests/golden/vision/{dense,moe}: small deterministic random Qwen3-VL models with what Hugging Face transformers
computes from those very folders (float32, CPU, eager attention): features of the tower and of the deepstack, positions,
logits, greedy continuations.

Run from the repository's root, in the root that holds transformers 5.12:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/vision_tiny.py

golden.safetensors, for each case K (a prompt with pictures):
    prompt_K i32 [T]; grids_K i32 [pictures, 3], patches_K f32 [patches of all pictures, 3 * 2 * 8 * 8]
    features_K f32 [sets, rows, hidden]: of the merger, then of the deepstack; rows of all pictures, in sequence
    positions_K i32 [3, T], delta_K i32 [1]; logits_K f32 [vocabulary], of the last row; greedy_K i32 [STEPS]

dense/ is served too, with the tokenizer of models/demo and the tokens of TOKENS behind it: served.json has conversations
with pictures of tests/golden/vision/pictures (written here by Pillow), and for each the ids that the prompt must have
and those that transformers generates greedily, pixels by its Pillow image processor.
"""
import json
import pathlib
import shutil

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from transformers import (Qwen2VLImageProcessorPil, Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLMoeConfig,
                          Qwen3VLMoeForConditionalGeneration)

OUT = pathlib.Path("tests/golden/vision")
STEPS = 16
MIN_GAP = 2e-3  # of the two likeliest logits, in a greedy step
# Behind the 3072 of models/demo.
TOKENS = {"<|image_pad|>": 3072, "<|video_pad|>": 3073, "<|vision_start|>": 3074, "<|vision_end|>": 3075}
PAD, START, END = 3072, 3074, 3075
IDS = dict(image_token_id=PAD, video_token_id=3073, vision_start_token_id=START, vision_end_token_id=END)
TEXT = dict(vocab_size=3080, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
            rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[4, 2, 2], mrope_interleaved=True))
VISION = dict(depth=4, hidden_size=40, intermediate_size=56, num_heads=2, patch_size=8, spatial_merge_size=2,
              temporal_patch_size=2, out_hidden_size=48, num_position_embeddings=36, deepstack_visual_indexes=[0, 2, 3])
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, decoder_sparse_step=1)
# Pictures in patches; text around them. Tall, wide, the least, two of them, a second turn.
CASES = [[(4, 6)], [(2, 2), (8, 2)], [(2, 10), (4, 4)]]


def randomize(model, seed):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if p.dim() >= 2:
                values = torch.randn(p.shape, generator=draw) * (1.5 / max(1, p[0].numel())) ** 0.5
            elif "norm" in name and name.endswith("weight"):
                values = 1 + 0.2 * torch.randn(p.shape, generator=draw)
            else:
                values = 0.05 * torch.randn(p.shape, generator=draw)
            p.copy_(values.bfloat16().float())  # what is stored


def prompt_of(grids, draw):
    ids = draw.integers(3, 140, 4).tolist()
    for height, width in grids:
        ids += [START] + [PAD] * (height * width // 4) + [END] + draw.integers(3, 140, 3).tolist()
    return torch.tensor([ids])


def run(model, grids, draw):
    ids = prompt_of(grids, draw)
    thw = torch.tensor([[1, h, w] for h, w in grids])
    patches = torch.from_numpy(draw.uniform(-1, 1, (int(thw.prod(1).sum()), 384)).astype(np.float32))
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=patches, image_grid_thw=thw,
                 mm_token_type_ids=(ids == PAD).int())
    with torch.no_grad():
        tower = model.model.visual(patches, grid_thw=thw)
        logits = model(**given).logits[0]
        positions, delta = model.model.get_rope_index(input_ids=ids, image_grid_thw=thw,
                                                      attention_mask=torch.ones_like(ids),
                                                      mm_token_type_ids=given["mm_token_type_ids"])
        greedy = model.generate(**given, max_new_tokens=STEPS, do_sample=False, pad_token_id=0, eos_token_id=None,
                                return_dict_in_generate=True, output_scores=True)
    gaps = [float(torch.topk(s[0], 2).values.diff().abs()) / float(s[0].max() - s[0].min()) for s in greedy.scores]
    rows = tower.pooler_output
    rows = rows if torch.is_tensor(rows) else torch.cat(list(rows))
    sets = torch.stack([rows] + list(tower.deepstack_features))
    return min(gaps), dict(prompt=ids[0].int(), grids=thw.int(), patches=patches, features=sets,
                           positions=positions[:, 0].int(), delta=delta.flatten().int(), logits=logits[-1],
                           greedy=greedy.sequences[0, ids.shape[1]:].int())


def write(name, config, model):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for seed in range(100):
        randomize(model, seed)
        draw = np.random.default_rng(seed)
        results = [run(model, grids, draw) for grids in CASES]
        if min(gap for gap, _ in results) >= MIN_GAP:
            break
    tensors = {f"{key}_{k}": value.contiguous() for k, (_, case) in enumerate(results) for key, value in case.items()}
    save_file(tensors, folder / "golden.safetensors")
    save_file({k: v.bfloat16().contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight" or
               not config.tie_word_embeddings}, folder / "model.safetensors")
    stored = json.loads(config.to_json_string(use_diff=False))
    keep = {key: stored[key] for key in ("architectures", "model_type", *IDS)}
    keep["architectures"] = [type(model).__name__]
    keep["tie_word_embeddings"] = config.tie_word_embeddings
    text = TEXT | (EXPERTS if name == "moe" else {})
    keep["text_config"] = {**text, "model_type": stored["text_config"]["model_type"],
                           "rms_norm_eps": stored["text_config"]["rms_norm_eps"], "dtype": "bfloat16",
                           "eos_token_id": 2}
    keep["vision_config"] = {**VISION, "model_type": stored["vision_config"]["model_type"],
                             "hidden_act": stored["vision_config"]["hidden_act"]}
    (folder / "config.json").write_text(json.dumps(keep, indent=1) + "\n")
    print(name, "seed", seed, "gap", min(gap for gap, _ in results), "bytes",
          sum(f.stat().st_size for f in folder.iterdir()))


PROCESSOR = dict(patch_size=8, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
                 size=dict(shortest_edge=4 * 16 * 16, longest_edge=16 * 16 * 16))
SYSTEM = "You tell of pictures."
# Texts and names of pictures, in their sequence, of the one message of a user.
CONVERSATIONS = [["What is here?", "gradient.png"], ["photo.jpg", "And here, beside", "gradient.png", "this one?"],
                 ["tall.webp", "Say it."]]


def is_picture(part):
    return part.endswith((".png", ".jpg", ".webp"))


def write_pictures():
    folder = OUT / "pictures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    y, x = np.mgrid[0:50, 0:70]
    gradient = np.stack([x * 3, y * 5, (x + y) * 2], -1) % 256
    Image.fromarray(gradient.astype(np.uint8)).save(folder / "gradient.png")
    y, x = np.mgrid[0:90, 0:120]
    rings = (np.sin(np.hypot(x - 50, y - 40) / 4)[..., None] * [90, 60, 110] + 128).clip(0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(rings).save(folder / "photo.jpg", quality=88, exif=exif)
    Image.fromarray(rings[:, :20]).save(folder / "tall.webp", lossless=True)


def serve(folder, model):
    from PIL import ImageOps
    tokenizer = Tokenizer.from_file("models/demo/tokenizer.json")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TOKENS])
    for text, number in TOKENS.items():
        assert tokenizer.token_to_id(text) == number
    processor = Qwen2VLImageProcessorPil(**PROCESSOR)
    out = []
    for parts in CONVERSATIONS:
        pictures = [ImageOps.exif_transpose(Image.open(OUT / "pictures" / p)).convert("RGB") for p in parts if is_picture(p)]
        pixels = processor(images=pictures, return_tensors="pt")
        grids = iter(pixels["image_grid_thw"].tolist())
        content = ""
        for part in parts:
            if not is_picture(part):
                content += part
                continue
            _, height, width = next(grids)
            content += "<|vision_start|>" + "<|image_pad|>" * (height * width // 4) + "<|vision_end|>"
        text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
        given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels["pixel_values"],
                     image_grid_thw=pixels["image_grid_thw"], mm_token_type_ids=(ids == PAD).int())
        with torch.no_grad():
            greedy = model.generate(**given, max_new_tokens=STEPS, do_sample=False, pad_token_id=0, eos_token_id=None,
                                    return_dict_in_generate=True, output_scores=True)
        gaps = [float(torch.topk(s[0], 2).values.diff().abs()) / float(s[0].max() - s[0].min()) for s in greedy.scores]
        new = greedy.sequences[0, ids.shape[1]:].tolist()
        print("served", parts, "gap", min(gaps))
        out.append(dict(parts=parts, prompt=ids[0].tolist(), greedy=new,
                        text=tokenizer.decode(new, skip_special_tokens=True)))
    (folder / "served.json").write_text(json.dumps(dict(system=SYSTEM, conversations=out), indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=1) + "\n")


torch.set_num_threads(1)
write_pictures()
dense = Qwen3VLConfig(text_config=TEXT, vision_config=VISION, tie_word_embeddings=True, **IDS)
served = Qwen3VLForConditionalGeneration(dense).float().eval()
write("dense", dense, served)
serve(OUT / "dense", served)
moe = Qwen3VLMoeConfig(text_config=TEXT | EXPERTS, vision_config=VISION, tie_word_embeddings=True, **IDS)
write("moe", moe, Qwen3VLMoeForConditionalGeneration(moe).float().eval())
