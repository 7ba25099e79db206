// Strict reading of the objects of a client's events: a member that is not served is refused by its name, which begins
// the error.
//
// Thread safety: free functions.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// kUnsupported of a member of `object` that is none of `served`. null asks for nothing and passes. `where`: the name of
// the object, "session"; "": none.
Status check_members(const Json& object, const std::string& where, const std::vector<std::string_view>& served);

// `object[key]`, where it is there, must be one of `wanted`: strings, of which the first is named in the error, or all.
Status check_value(const Json& object, const char* key, const std::string& where, std::initializer_list<Json> wanted);

// A member that is an object; nullptr: it is absent or null. kInvalidArgument of another type.
Result<const Json*> read_object(const Json& object, const char* key, const std::string& where);

std::string member_name(const std::string& where, std::string_view key);
std::string shown_value(const Json& value);

}  // namespace millrace::api
