"""Golden data for the demo of pictures (models/demo-vl): questions about examples/pictures, the ids of the prompt and the greedy answer
of Hugging Face transformers in float32, pixels by its Pillow image processor.

    python3 tests/oracles/demo_vl.py models/demo-vl tests/golden/demo-vl/greedy.json      (needs PyTorch and transformers 5.12)

The bfloat16 weights are converted to float32 before anything is computed. `right`: whether the answer is what the picture shows; null
where nothing states it. `min_gap`: the smallest distance between the best and the second logit along the answer.
"""

import json
import pathlib
import sys

import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import Qwen2VLImageProcessorPil, Qwen3VLForConditionalGeneration

PICTURES = pathlib.Path("examples/pictures")
STEPS = 40
# A part that is the name of a file is the picture.
QUESTIONS = ["What is in this picture?", "What shape is it?", "Which colour?", "Which digit?", "Where is the digit?"]


def conversations():
    names = sorted(p.name for p in PICTURES.glob("*.png"))
    out = [[name, question] for name in names for question in QUESTIONS]
    out += [["Describe the picture.", names[0]], [names[0], names[1], "Which digit is in the second picture?"], ["Hello!"]]
    return out


@torch.no_grad()
def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "preprocessor_config.json").read_text())
    processor = Qwen2VLImageProcessorPil(**{k: v for k, v in config.items() if k != "image_processor_type"})
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").float().eval()
    pad, end = model.config.image_token_id, tokenizer.token_to_id("<|im_end|>")
    contents = json.loads((PICTURES / "pictures.json").read_text())
    sys.path.insert(0, "tools/train_demo")
    from vl_talk import ASK, answer
    kind_of = {text: kind for kind, texts in ASK.items() for text in texts}
    cases = []
    for parts in conversations():
        names = [p for p in parts if p.endswith(".png")]
        given = {}
        if names:
            pixels = processor(images=[Image.open(PICTURES / name).convert("RGB") for name in names], return_tensors="pt")
            given = dict(pixel_values=pixels["pixel_values"], image_grid_thw=pixels["image_grid_thw"])
        grids = iter(given["image_grid_thw"].tolist() if names else [])
        content = ""
        for part in parts:
            if part in names:
                _, height, width = next(grids)
                content += "<|vision_start|>" + "<|image_pad|>" * (height * width // 4) + "<|vision_end|>"
            else:
                content += part
        ids = tokenizer.encode(f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
        ids = torch.tensor([ids])
        made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == pad).int(), **given,
                              max_new_tokens=STEPS, do_sample=False, eos_token_id=end, pad_token_id=0, return_dict_in_generate=True,
                              output_scores=True)
        gap = min(float(torch.topk(s[0], 2).values.diff().abs()) for s in made.scores)
        new = made.sequences[0, ids.shape[1]:].tolist()
        text = tokenizer.decode(new, skip_special_tokens=True)
        question = parts[-1]
        right = text == answer(kind_of[question], contents[names[0]]) if len(names) == 1 and question in kind_of else None
        print(parts, "->", text, right, round(gap, 3))
        cases.append(dict(parts=parts, prompt=ids[0].tolist(), greedy=new, text=text, right=right, min_gap=round(gap, 4)))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(len(cases), "cases, smallest gap", min(case["min_gap"] for case in cases), "wrong", sum(case["right"] is False for case in cases))


if __name__ == "__main__":
    main()
