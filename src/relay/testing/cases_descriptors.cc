// Cases about rule 4: a descriptor is trusted with nothing.
#include "relay/descriptor.h"
#include "relay/testing/fixture.h"
#include "wire/limits.h"

namespace millrace::relay_testing {
namespace {

constexpr int kForgedPatienceMs = 3'000;  // of a get whose descriptor may name a peer that is not there

void damaged_descriptors(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  Sent sent = send(*pair.writer, 1, {1000, 2000});
  ASSERT_TRUE(sent.ticket.ok());
  const std::string good = sent.ticket->descriptor;
  EXPECT_LE(good.size(), wire::kMaxDescriptorBytes);
  const std::vector<StatusCode> wanted = {StatusCode::kInvalidArgument};
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ mask);
      expect_refused(receive(*pair.reader, bad, sent.sizes), wanted, fmt::format("byte {} ^ {:#x}", i, mask));
    }
    expect_refused(receive(*pair.reader, good.substr(0, i), sent.sizes), wanted, fmt::format("cut to {} bytes", i));
  }
  for (const std::size_t more : {1, 8, 100, 5000}) {
    expect_refused(receive(*pair.reader, good + std::string(more, '\0'), sent.sizes), wanted,
                   fmt::format("{} bytes more", more));
  }
  expect_refused(receive(*pair.reader, std::string(1u << 20, 'M'), sent.sizes), wanted, "a MiB of it");
  // None of this harmed the put or the relays.
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent));
  expect_put_end(sent, {StatusCode::kOk});
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
}

void old_descriptors(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.credits = 2;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  std::vector<std::string> old;
  const Sizes sizes = {5000};
  for (uint64_t i = 0; i < 10; ++i) {
    Sent sent = send(*pair.writer, i, sizes);
    ASSERT_TRUE(sent.ticket.ok());
    // All that came before use the same slots, and yet none gives these bytes.
    for (const std::string& descriptor : old) {
      expect_refused(receive(*pair.reader, descriptor, sizes), refused_codes(), "an old descriptor");
    }
    ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent));
    expect_put_end(sent, {StatusCode::kOk});
    expect_refused(receive(*pair.reader, sent), refused_codes(), "a put that is over");
    old.push_back(sent.ticket->descriptor);
  }
  expect_quiet(*pair.writer);
}

void descriptors_of_others(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  Pair gone = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader && gone.writer);
  const std::string backend = pair.writer->capabilities().name;
  // Of an instance that is gone.
  Sent lost = send(*gone.writer, 1, {1000});
  ASSERT_TRUE(lost.ticket.ok());
  gone.writer.reset();
  expect_refused(receive(*pair.reader, lost, kForgedPatienceMs), refused_codes(), "a put of a relay that is gone");
  // Of another backend, in a form that is right otherwise.
  Sent sent = send(*pair.writer, 2, {1000});
  ASSERT_TRUE(sent.ticket.ok());
  Result<Descriptor> descriptor = decode_descriptor(sent.ticket->descriptor, backend);
  ASSERT_TRUE(descriptor.ok()) << descriptor.status().to_string();
  EXPECT_EQ(descriptor->parts, 1u);
  EXPECT_EQ(descriptor->bytes, 1000u);
  Descriptor other = *descriptor;
  other.backend = "strange";
  expect_refused(receive(*pair.reader, encode_descriptor(other), sent.sizes), {StatusCode::kInvalidArgument},
                 "a descriptor of another backend");
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent));
  expect_put_end(sent, {StatusCode::kOk});
}

// Well-formed lies. Each is refused, or gives the right bytes because the field was not needed; never others.
void forged_descriptors(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  const std::string backend = pair.writer->capabilities().name;
  using Forge = void (*)(Descriptor&);
  const std::vector<std::pair<const char*, Forge>> forgeries = {
      {"op + 1000", [](Descriptor& d) { d.op.value += 1000; }},
      {"op of all ones", [](Descriptor& d) { d.op.value = UINT64_MAX; }},
      {"generation + 1", [](Descriptor& d) { ++d.generation; }},
      {"generation of all ones", [](Descriptor& d) { d.generation = UINT64_MAX; }},
      {"another instance", [](Descriptor& d) { d.instance.random[3] ^= 1; }},
      {"another boot", [](Descriptor& d) { d.instance.boot ^= 1; }},
      {"no tail", [](Descriptor& d) { d.tail.clear(); }},
      {"half a tail", [](Descriptor& d) { d.tail.resize(d.tail.size() / 2); }},
      {"a tail of zeros", [](Descriptor& d) { d.tail.assign(d.tail.size(), '\0'); }},
      {"a tail of ones", [](Descriptor& d) { d.tail.assign(d.tail.size(), '\xFF'); }},
      {"a long tail", [](Descriptor& d) { d.tail += std::string(kMaxDescriptorTailBytes - d.tail.size(), 'x'); }},
      {"more bytes",
       [](Descriptor& d) {
         describe_sizes(Sizes{kMib, 200}, d);
       }},
      {"fewer bytes",
       [](Descriptor& d) {
         describe_sizes(Sizes{10, 200}, d);
       }},
      {"huge",
       [](Descriptor& d) {
         describe_sizes(Sizes{SIZE_MAX / 2, 200}, d);
       }},
      {"overflow",
       [](Descriptor& d) {
         describe_sizes(Sizes{SIZE_MAX, 301}, d);
       }},
  };
  uint64_t seed = 0;
  for (const auto& [what, forge] : forgeries) {
    Sent sent = send(*pair.writer, ++seed, {100, 200});
    ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
    Result<Descriptor> descriptor = decode_descriptor(sent.ticket->descriptor, backend);
    ASSERT_TRUE(descriptor.ok());
    Sizes sizes = sent.sizes;
    forge(*descriptor);
    if (std::string_view(what) == "more bytes") sizes = {kMib, 200};
    if (std::string_view(what) == "fewer bytes") sizes = {10, 200};
    if (std::string_view(what) == "huge") sizes = {SIZE_MAX / 2, 200};
    if (std::string_view(what) == "overflow") sizes = {SIZE_MAX, 301};
    {
      const Result<Parts> parts =
          receive(*pair.reader, encode_descriptor(*descriptor), sizes, kForgedPatienceMs).outcome();
      if (parts.ok()) {
        EXPECT_EQ(differs(sent.seed, sent.sizes, *parts), "") << what;
      } else {
        EXPECT_NE(parts.status().message(), "never: the get did not end") << what;
      }
    }
    pair.writer->cancel(sent.ticket->op);
    expect_put_end(sent, {StatusCode::kOk, StatusCode::kCancelled});
  }
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
  expect_round_trip(*pair.writer, *pair.reader, 1000, {5000});
}

void only_the_destination_may_get(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  std::unique_ptr<Relay> third = make_relay_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader && third);
  Sent sent = send(*pair.writer, 1, {1000}, {.destination = pair.reader->address()});
  ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
  expect_refused(receive(*third, sent), {StatusCode::kInvalidArgument, StatusCode::kPermissionDenied},
                 "a get by another than the destination");
  EXPECT_EQ(sent.end.count(), 0);
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent));
  expect_put_end(sent, {StatusCode::kOk});
}

}  // namespace

std::vector<Case> descriptor_cases() {
  return {{"damaged_descriptors", damaged_descriptors},
          {"old_descriptors", old_descriptors},
          {"descriptors_of_others", descriptors_of_others},
          {"forged_descriptors", forged_descriptors},
          {"only_the_destination_may_get", only_the_destination_may_get}};
}

}  // namespace millrace::relay_testing
