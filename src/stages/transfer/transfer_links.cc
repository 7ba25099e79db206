#include "stages/transfer/transfer_links.h"

namespace millrace {

OpenTransferLinks with_spans(OpenTransferLinks open, StageSpans spans) {
  if (!open) return open;
  return [open = std::move(open), spans = std::move(spans)]() -> Result<transfer::TransferLinks> {
    ASSIGN_OR_RETURN(transfer::TransferLinks links, open());
    links.spans = spans;
    return links;
  };
}

}  // namespace millrace
