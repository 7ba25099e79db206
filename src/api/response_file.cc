#include "api/response_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/content_blocks.h"
#include "base/json.h"
#include "base/log.h"

namespace millrace::api {
namespace {

constexpr int32_t kApplication = 0x4d525250;      // "MRRP"; another schema gets another number
constexpr int64_t kMaxNumber = int64_t{1} << 62;  // so that later ones have numbers too
constexpr int kStoredDepth = 2 * kJsonMaxDepth;   // what a client sent lies some levels deep in a row
constexpr const char* kSchema =
    "CREATE TABLE response(number INTEGER PRIMARY KEY, id TEXT NOT NULL, body TEXT NOT NULL, input TEXT NOT NULL, "
    "items TEXT NOT NULL, before INTEGER NOT NULL, background INTEGER NOT NULL, expires_at INTEGER NOT NULL, "
    "listed INTEGER NOT NULL);"
    "CREATE INDEX response_before ON response(before)";

// What the routes take for granted of a list of items.
Status check_items(const Json& items, const std::string& name) {
  if (!items.is_array()) return wrong_type(name, items, "an array of items");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string item = fmt::format("{}[{}]", name, i);
    if (!items[i].is_object()) return wrong_type(item, items[i], "an object");
    RETURN_IF_ERROR(read_block_string(items[i], "id", item).status());
  }
  return ok_status();
}

// The file is another program's to write too, so its rows are held to what write_put() writes.
Status check_row(const SqliteStatement& rows, const ResponseFile::Row& row) {
  const int64_t number = rows.number(0), before = rows.number(5), background = rows.number(6);
  if (number < 1 || number > kMaxNumber) {
    return invalid_argument("a response has the number {}; wanted 1 to {}", number, kMaxNumber);
  }
  if (before < 0 || before >= number) {
    return invalid_argument("response {} goes on from {}; wanted an earlier one, or 0", number, before);
  }
  if (background < 0 || background > static_cast<int64_t>(Background::kEnded)) {
    return invalid_argument("response {} has the background state {}; wanted one from 0 to 2", number, background);
  }
  const auto body = parse_json(row.body, kStoredDepth), input = parse_json(row.input, kStoredDepth);
  RETURN_IF_ERROR(body.status().with_prefix(fmt::format("the body of response {}", number)));
  RETURN_IF_ERROR(input.status().with_prefix(fmt::format("the input of response {}", number)));
  const Json* output = body->is_object() ? json_find(*body, "output") : nullptr;
  Status shape = check_items(output ? *output : Json(), "body.output");
  if (shape.ok()) shape = check_items(*input, "input");
  return shape.with_prefix(fmt::format("response {}", number));
}

}  // namespace

Result<std::unique_ptr<ResponseFile>> ResponseFile::open(const std::string& path) {
  auto database = SqliteDatabase::open(path, kApplication, kSchema);
  if (!database.ok()) return database.status().with_prefix(path);
  return std::unique_ptr<ResponseFile>(new ResponseFile(path, std::move(database).value()));
}

ResponseFile::ResponseFile(std::string path, SqliteDatabase database)
    : path_(std::move(path)), database_(std::move(database)) {
  thread_ = std::thread([this] { write_main(); });
}

ResponseFile::~ResponseFile() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

Status ResponseFile::load(const std::function<void(Row&&)>& use) {
  ASSIGN_OR_RETURN(SqliteStatement rows,
                   database_.prepare("SELECT number, id, body, input, items, before, background, expires_at, listed "
                                     "FROM response ORDER BY number"));
  for (;;) {
    const Result<bool> any = rows.step();
    if (!any.ok()) return any.status().with_prefix(path_);
    if (!*any) return ok_status();
    Row row{.number = static_cast<uint64_t>(rows.number(0)),
            .id = rows.text(1),
            .body = rows.text(2),
            .input = rows.text(3),
            .before = static_cast<uint64_t>(rows.number(5)),
            .background = static_cast<Background>(rows.number(6)),
            .expires_at = rows.number(7),
            .listed = rows.number(8) != 0};
    RETURN_IF_ERROR(check_row(rows, row).with_prefix(path_));
    const auto items = parse_json(rows.text(4));
    if (!items.ok()) return items.status().with_prefix(fmt::format("{}: the items of response {}", path_, row.number));
    for (const Json& item : *items) {
      if (item.is_string()) row.items.push_back(item);
    }
    use(std::move(row));
  }
}

void ResponseFile::put(Row row) {
  const std::size_t bytes = row.body.size() + row.input.size();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ + bytes > kMaxUnwrittenBytes && waiting_bytes_ > 0) {
      LOG_WARNING("response {} is not kept in {}: {} bytes wait for the disk already, the limit is {}", row.id, path_,
                  waiting_bytes_, kMaxUnwrittenBytes);
      return;
    }
    waiting_bytes_ += bytes;
    waiting_.emplace_back(std::move(row));
  }
  changed_.notify_one();
}

void ResponseFile::drop(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(number);
  }
  changed_.notify_one();
}

void ResponseFile::write_main() {
  for (;;) {
    Change change;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      change = std::move(waiting_.front());
      waiting_.pop_front();
      if (const Row* row = std::get_if<Row>(&change)) {
        const std::size_t bytes = row->body.size() + row->input.size();
        CHECK(waiting_bytes_ >= bytes);
        waiting_bytes_ -= bytes;
      }
    }
    write(change);
  }
}

void ResponseFile::write(const Change& change) {
  if (const Row* row = std::get_if<Row>(&change)) {
    const Status status = write_put(*row);
    if (!status.ok()) LOG_WARNING("response {} is not kept in {}: {}", row->id, path_, status.message());
    return;
  }
  owed_.insert(std::get<uint64_t>(change));
  for (auto it = owed_.begin(); it != owed_.end();) {
    const Status status = write_drop(*it);
    if (!status.ok()) {
      LOG_WARNING("{} responses that are gone are still in {}: {}", owed_.size(), path_, status.message());
      return;
    }
    it = owed_.erase(it);
  }
}

Status ResponseFile::write_put(const Row& row) {
  const std::string items = nlohmann::json(row.items).dump();
  ASSIGN_OR_RETURN(SqliteStatement statement,
                   database_.prepare("INSERT INTO response VALUES(?, ?, ?, ?, ?, ?, ?, ?, 1)"));
  statement.bind(1, static_cast<int64_t>(row.number)).bind(2, row.id).bind(3, row.body);
  statement.bind(4, row.input).bind(5, items);
  statement.bind(6, static_cast<int64_t>(row.before));
  statement.bind(7, static_cast<int64_t>(row.background)).bind(8, row.expires_at);
  return statement.run();
}

// Then the one before it, where no client finds that one either and nothing else goes on from it, and so on.
Status ResponseFile::write_drop(uint64_t number) {
  ASSIGN_OR_RETURN(SqliteStatement hide, database_.prepare("UPDATE response SET listed = 0 WHERE number = ?"));
  RETURN_IF_ERROR(hide.bind(1, static_cast<int64_t>(number)).run());
  for (auto next = static_cast<int64_t>(number); next != 0;) {
    ASSIGN_OR_RETURN(SqliteStatement remove,
                     database_.prepare("DELETE FROM response WHERE number = ?1 AND listed = 0 AND NOT EXISTS "
                                       "(SELECT 1 FROM response WHERE before = ?1) RETURNING before"));
    ASSIGN_OR_RETURN(const bool removed, remove.bind(1, next).step());
    next = removed ? remove.number(0) : 0;
    if (removed) RETURN_IF_ERROR(remove.run());
  }
  return ok_status();
}

}  // namespace millrace::api
