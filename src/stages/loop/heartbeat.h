// The heartbeat of a stage loop: its state and numbers as one StageStatus.
//
// Thread safety: the loop's thread.
#pragma once

#include "stages/loop/context.h"

namespace millrace::loop {

wire::StageStatus make_heartbeat(LoopContext& context, const StageLoopBooks& books);

}  // namespace millrace::loop
