#include "text/jinja/scope.h"

#include "base/status.h"

namespace millrace::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const auto& [key, value] : variables) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

ScopeChain::~ScopeChain() {
  // The vector keeps every scope alive while they are emptied one by one: no destructor recurses.
  for (auto& scope : captured_) scope->variables.clear();
}

const Value* ScopeChain::find(std::string_view name) const {
  for (const Scope* scope = current_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* value = scope->find(name)) return value;
  }
  return nullptr;
}

void ScopeChain::assign(const Target& target, const Value& value, Budget& budget) {
  if (target.is_tuple) {
    std::vector<Value> items = iterate(value, budget);
    if (items.size() != target.items.size()) {
      fail("{} values to unpack, wanted {}", items.size(), target.items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i], budget);
    return;
  }
  if (target.member.empty()) {
    set(target.name, value);
    return;
  }
  const Value* object = find(target.name);
  if (object == nullptr || !object->is(Kind::kNamespace)) {
    fail("cannot set '{}.{}': '{}' is {}, wanted a namespace", target.name, target.member, target.name,
         object == nullptr ? "undefined" : type_name(*object));
  }
  budget.items(1);
  object->as<NamespaceObject>().set(target.member, value);
}

const std::shared_ptr<Scope>& ScopeChain::capture() {
  CHECK(current_ != nullptr);
  if (!std::exchange(current_->captured, true)) captured_.push_back(current_);
  return current_;
}

}  // namespace millrace::jinja
