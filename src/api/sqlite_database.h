// SqliteDatabase: a SQLite file that one process has for itself, and statements on it.
//
// Owner: the component that opened it. Thread safety: one thread at a time.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::api {

class SqliteStatement {
 public:
  // Numbered from 1, in the order of the statement's question marks. The text must live until the statement has run.
  SqliteStatement& bind(int at, std::string_view text);
  SqliteStatement& bind(int at, int64_t number);
  // True: there is a row.
  Result<bool> step();
  Status run();  // of a statement that gives no rows
  int64_t number(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string text(int column) const;

 private:
  friend class SqliteDatabase;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  SqliteStatement(sqlite3* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}
  sqlite3* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class SqliteDatabase {
 public:
  // For this process alone, and with all pages whole. `application`: a number that marks files of this kind (SQLite's
  // application_id); a new or empty file gets it and `schema`. Others may not read a new file (mode 0600). Errors have
  // what is wrong with the file and what is wanted.
  static Result<SqliteDatabase> open(const std::string& path, int32_t application, const char* schema);

  Result<SqliteStatement> prepare(const char* sql) const;
  Status run(const char* sql) const;

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  explicit SqliteDatabase(sqlite3* database) : database_(database) {}
  Status begin(int32_t application, const char* schema) const;
  Result<int64_t> ask(const char* sql) const;

  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace millrace::api
