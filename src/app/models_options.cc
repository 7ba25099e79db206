// The options of a server of several models.
#include <CLI/CLI.hpp>

#include "app/options.h"

namespace millrace {

void add_models_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Several models";
  command.remove_option(command.get_option("--model"));
  command
      .add_option("--model,-m", o.models,
                  "Hugging Face model directory (config.json, *.safetensors, tokenizer.json), GGUF file, or "
                  "ORG/NAME[:QUANT] of a hub; may repeat: several models, loaded when they are asked for; NAME=MODEL "
                  "gives one a name")
      ->group("Model and memory");
  command.add_option("--models-dir", o.models_dir, "Folder whose models are served: folders and GGUF files in it")
      ->group(group);
  command
      .add_option("--models-file", o.models_file,
                  "File in YAML with models and options that one has of its own (docs/models.md)")
      ->group(group);
  command
      .add_flag(
          "--allow-pull", o.allow_pull,
          "Clients may get models from the hub, give them names and delete them, by Ollama's /api/pull, /api/copy "
          "and /api/delete; the models in the cache are served")
      ->group(group);
  command.add_option("--model-alias", o.model_aliases, "ALIAS=NAME: another name of a model; may repeat")->group(group);
  command
      .add_option("--pin-model", o.pinned_models, "Name of a model that is loaded at the start and stays; may repeat")
      ->group(group);
  command
      .add_option("--model-ttl-s,--model-ttl", o.model_ttl_s,
                  "Unload a model that had no request for so many seconds; 0 = never")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command.add_option("--models-max", o.models_max, "Models loaded at a time; 0 = as many as the memory holds")
      ->check(CLI::Range(0, 256))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--models-memory-gib", o.models_memory_gib,
                  "Memory in GiB for the weights of all loaded models; 0 = what is free when one is loaded")
      ->check(CLI::Range(0.0, 65536.0))
      ->capture_default_str()
      ->group(group);
}

}  // namespace millrace
