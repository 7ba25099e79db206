// What `millrace inspect` and `millrace show` print of a model. Thread safety: the main thread.
#pragma once

#include <memory>
#include <string>

#include "formats/model_config.h"
#include "formats/weights.h"
#include "models/model.h"

namespace millrace {

// "  name                   value" on standard output.
void print_row(const char* name, const std::string& value);
void print_model(const ModelDir& dir, const WeightStore& store);

// Whether the configuration and every tensor's name and shape are those of a model that this program runs; no weight is
// read.
Status check_model(const ModelDir& dir, const std::shared_ptr<WeightStore>& store, LayerRange layers);

}  // namespace millrace
