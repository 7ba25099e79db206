// Detaching: received tensors get bytes of their own, so that the relay's go back to their sender.
//
// A stage that waits for one thing while it holds another (a fan-in, a payload before its stream, a chunk before its
// payload) would hold its senders' credits meanwhile; where the awaited thing needs such a credit, both would wait for
// ever. So what has to wait is copied, and only that: a stage that can begin at once reads the relay's own memory.
//
// Thread safety: free function without state.
#pragma once

#include "payload/value.h"

namespace millrace::loop {

// All tensors in host memory, at most kMaxValueDepth containers deep, as restore() makes them.
void detach(Value& value);

}  // namespace millrace::loop
