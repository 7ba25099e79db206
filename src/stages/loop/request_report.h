// What a stage reports when the coordinator asks what it has of requests (wire/probe_messages.h). Nothing that still
// moves may be called idle: from the reports of all stages the coordinator concludes that a message was lost.
//
// Thread safety: the loop's thread.
#pragma once

#include "stages/loop/context.h"
#include "stages/loop/relay_calls.h"
#include "stages/loop/request_table.h"

namespace millrace::loop {

// Where something of it has gone, by the places in context.targets: what its tombstone keeps.
Tombstone::Targets targets_of(const LoopRequest& request, const LoopContext& context);

wire::RequestReport report_on(const wire::RequestProbe& probe, const LoopContext& context, const RequestTable& requests,
                              const RelayCalls& calls);

}  // namespace millrace::loop
