// ModelNames: the names under which clients may ask for the served model, and whether they have to. An answer has the
// name that was asked for.
//
// Thread safety: a constant value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

struct ModelNames {
  std::vector<std::string> names;  // at least one; the first is that of a request without a name
  bool any = false;                // every other name is taken too
  bool required = false;           // a request without a name is refused

  // kNotFound: it is none of them. kInvalidArgument: it is taken, but longer than a name may be.
  Status check(std::string_view name) const;
  // What a request asks for, or the first name. kInvalidArgument where it names none and has to.
  Result<std::string> resolve(const std::optional<std::string>& name) const;
  // The same for the field `model` of a request.
  Result<std::string> read(const Json& body) const;
};

}  // namespace millrace::api
