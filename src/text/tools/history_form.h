// ToolHistoryForm: what a chat template wants of a conversation's history, which clients send in one form: of its tool
// calls, found by rendering a small conversation, and of the role developer, found in the template's text.
//
// Thread safety: values, and a free function.
#pragma once

#include "text/chat_template.h"

namespace millrace {

struct ToolHistoryForm {
  bool arguments_as_text = false;  // a string of JSON, as clients send it; else the object
  bool null_content = false;       // a message of calls alone has none; else an empty text
  bool short_ids = false;          // of nine letters and digits
  bool developer_role = false;     // it is one of the roles; else system has its place
};

// That of the first form of which the template renders the call; the default where it renders none.
ToolHistoryForm find_tool_history_form(const ChatTemplate& chat_template);

}  // namespace millrace
