#include "api/sqlite_database.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace millrace::api {
namespace {

constexpr int kBusyMs = 1000;  // a server that is ending may still have the file

Status failed(sqlite3* database, int code) {
  const int kind = code & 0xff;
  if (kind == SQLITE_BUSY || kind == SQLITE_LOCKED) {
    return error(StatusCode::kConflict, "it is open in another process; wanted a file of this server alone");
  }
  if (kind == SQLITE_NOTADB) return invalid_argument("it is no SQLite file; wanted one, or a new name");
  if (kind == SQLITE_CORRUPT) return invalid_argument("it is damaged; wanted a whole file: restore it, or remove it");
  if (kind == SQLITE_FULL) return error(StatusCode::kResourceExhausted, "the disk is full");
  if (kind == SQLITE_READONLY) return invalid_argument("it cannot be written; wanted a file that this user may write");
  return internal_error("{} ({})", sqlite3_errmsg(database), sqlite3_errstr(code));
}

Status make_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    return invalid_argument("it cannot be opened: {}; wanted a file that this user may write, in a folder that exists",
                            std::strerror(errno));
  }
  ::close(file);
  return ok_status();
}

}  // namespace

SqliteStatement& SqliteStatement::bind(int at, std::string_view text) {
  // Other errors come with step(); this one is a statement with fewer parameters.
  CHECK(sqlite3_bind_text64(statement_.get(), at, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8) !=
        SQLITE_RANGE);
  return *this;
}

SqliteStatement& SqliteStatement::bind(int at, int64_t number) {
  CHECK(sqlite3_bind_int64(statement_.get(), at, number) == SQLITE_OK);
  return *this;
}

Result<bool> SqliteStatement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return failed(database_, code);
}

Status SqliteStatement::run() { return step().status(); }

std::string SqliteStatement::text(int column) const {
  CHECK(column >= 0 && column < sqlite3_column_count(statement_.get()));
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  return bytes == nullptr
             ? ""
             : std::string(bytes, static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column)));
}

Result<SqliteDatabase> SqliteDatabase::open(const std::string& path, int32_t application, const char* schema) {
  RETURN_IF_ERROR(make_file(path));
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX, nullptr);
  SqliteDatabase database(opened);
  if (code != SQLITE_OK) return failed(opened, code);
  sqlite3_extended_result_codes(opened, 1);
  sqlite3_busy_timeout(opened, kBusyMs);
  RETURN_IF_ERROR(database.begin(application, schema));
  return database;
}

// The lock of the write-ahead log's exclusive mode is kept until the file is closed.
Status SqliteDatabase::begin(int32_t application, const char* schema) const {
  RETURN_IF_ERROR(run("PRAGMA locking_mode=EXCLUSIVE"));
  RETURN_IF_ERROR(run("BEGIN EXCLUSIVE; COMMIT"));
  ASSIGN_OR_RETURN(const int64_t marked, ask("PRAGMA application_id"));
  ASSIGN_OR_RETURN(const int64_t tables, ask("SELECT count(*) FROM sqlite_master"));
  if (marked != application && (marked != 0 || tables != 0)) {
    return invalid_argument("it is another program's SQLite file (application_id {}); wanted {}, or a new name", marked,
                            application);
  }
  RETURN_IF_ERROR(run("PRAGMA journal_mode=WAL"));
  RETURN_IF_ERROR(run("PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON"));
  ASSIGN_OR_RETURN(SqliteStatement check, prepare("PRAGMA quick_check(1)"));
  ASSIGN_OR_RETURN(const bool any, check.step());
  if (any && check.text(0) != "ok") {
    return invalid_argument("it is damaged ({}); wanted a whole file: restore it, or remove it", check.text(0));
  }
  if (marked == application) return ok_status();
  RETURN_IF_ERROR(run(schema));
  return run(fmt::format("PRAGMA application_id={}", application).c_str());
}

Result<int64_t> SqliteDatabase::ask(const char* sql) const {
  ASSIGN_OR_RETURN(SqliteStatement statement, prepare(sql));
  RETURN_IF_ERROR(statement.step().status());
  return statement.number(0);
}

Result<SqliteStatement> SqliteDatabase::prepare(const char* sql) const {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database_.get(), sql, -1, &statement, nullptr);
  if (code != SQLITE_OK) return failed(database_.get(), code);
  return SqliteStatement(database_.get(), statement);
}

Status SqliteDatabase::run(const char* sql) const {
  const int code = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? ok_status() : failed(database_.get(), code);
}

}  // namespace millrace::api
