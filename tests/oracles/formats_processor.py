"""Writes tests/golden/formats/processors.json: texts of preprocessor_config.json and what transformers reads from them.

Run from the repository's root, in the root that holds transformers 5.12:
    oracle python3 tests/oracles/formats_processor.py
"""
import json
import pathlib
import tempfile

from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

OUT = "tests/golden/formats/processors.json"
QWEN3 = {"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
         "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
         "image_processor_type": "Qwen2VLImageProcessorFast"}
QWEN2 = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
         "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
         "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"}
CASES = {
    "qwen3-vl": QWEN3,
    "qwen2-vl": QWEN2,
    "nothing": {},
    "both spellings": {**QWEN3, "min_pixels": 1024, "max_pixels": 2048},
    "one of the older spelling": {**QWEN3, "max_pixels": 2000000},
    "steps off": {**QWEN3, "do_resize": False, "do_rescale": False, "do_normalize": False},
    "rescale factor": {**QWEN3, "rescale_factor": 0.0078431},
    "nulls": {**QWEN3, "min_pixels": None, "max_pixels": None, "do_center_crop": None, "crop_size": None, "do_pad": None},
    "transformers 5": {**QWEN3, "image_processor_type": "Qwen2VLImageProcessor", "do_convert_rgb": True, "resample": 3, "do_resize": True},
}
rows = []
default_size = dict(Qwen2VLImageProcessorPil.size)
for name, config in CASES.items():
    Qwen2VLImageProcessorPil.size = dict(default_size)  # the constructor writes min_pixels and max_pixels into the class's
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "preprocessor_config.json").write_text(json.dumps(config))
        p = Qwen2VLImageProcessorPil.from_pretrained(folder)
    read = dict(patch_size=p.patch_size, temporal_patch_size=p.temporal_patch_size, merge_size=p.merge_size,
                min_pixels=p.size["shortest_edge"], max_pixels=p.size["longest_edge"], resize=p.do_resize, rescale=p.do_rescale,
                normalize=p.do_normalize, rescale_factor=p.rescale_factor, mean=list(p.image_mean), std=list(p.image_std))
    rows.append(dict(name=name, text=json.dumps(config), read=read))
with open(OUT, "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
