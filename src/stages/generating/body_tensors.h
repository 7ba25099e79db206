// BodyTensors: the tensors of a request's body, read from the file in which the coordinator holds them, as if a trainer
// broadcast them. So they are checked, packed and staged as those of a trainer.
//
// Owner: the thread that receives. Thread safety: one thread.
#pragma once

#include <memory>

#include "collective/process_group.h"
#include "stages/weight_plan.h"

namespace millrace {

// kNotFound: the file is not on this host, or is no longer there.
Result<std::unique_ptr<collective::ProcessGroup>> open_body_tensors(const WeightBody& body);

}  // namespace millrace
