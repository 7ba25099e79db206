"""Writes tests/golden/vision/gguf/{model,mmproj}.gguf: the served model of vision_tiny.py, with its tokenizer and chat template, as llama.cpp's
own converter writes it.

Run from the repository's root, in the root that holds llama.cpp's tools:
    oracle python3 tests/oracles/vision_gguf.py
    oracle python3 tests/oracles/vision_gguf.py MODEL_DIR OUT [TYPE]     (another directory, as bench/vision.py makes one)
"""
import json
import pathlib
import runpy
import shutil
import sys
import tempfile

sys.path.insert(0, "tests/e2e")
sys.path.insert(1, "/usr/share/llama.cpp/llama.cpp-tools")
import conversion.base
from vision_model import vision_model

CONVERTER = "/usr/share/doc/llama.cpp-tools/scripts/convert_hf_to_gguf.py"
TYPE = sys.argv[3] if len(sys.argv) > 3 else "bf16"
OUT = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "tests/golden/vision/gguf")

# It knows pre-tokenizers by a hash of their ids, and that of the demo's tokenizer is not among those.
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
shutil.rmtree(OUT, ignore_errors=True)
OUT.mkdir(parents=True)
with tempfile.TemporaryDirectory() as folder:
    model = pathlib.Path(folder, "vl")
    if len(sys.argv) > 2:
        model.mkdir()
        for file in pathlib.Path(sys.argv[1]).resolve().iterdir():
            if file.suffix == ".safetensors":
                (model / file.name).symlink_to(file)
            else:
                shutil.copy(file, model)
    else:
        vision_model(model)
    config = model / "tokenizer_config.json"
    read = {key: value for key, value in json.loads(config.read_text()).items() if key != "chat_template"}
    # transformers looks for added tokens here, where the file has any.
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    read["added_tokens_decoder"] = {str(token.pop("id")): token for token in added}
    config.write_text(json.dumps(read))
    for name, options in (("model", []), ("mmproj", ["--mmproj"])):
        sys.argv = [CONVERTER, str(model), "--outtype", TYPE, "--outfile", str(OUT / f"{name}.gguf"), *options]
        runpy.run_path(CONVERTER, run_name="__main__")
