// The named limits of everything that crosses a process border. The codec refuses a message over one of the first group
// on both sides: encode() with kTooLarge, decode() before anything is allocated; the error names the limit and the
// value seen. Those of the second group are kept by the stages that fill the fields. Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::wire {

inline constexpr uint32_t kWireVersion = 25;

inline constexpr std::size_t kMaxFrameBytes = 64u << 20;   // one ZeroMQ frame; set as ZMQ_MAXMSGSIZE on every socket
inline constexpr std::size_t kMaxMapEntries = 64;          // fields of one message
inline constexpr std::size_t kMaxBatchEntries = 4096;      // chunks, acknowledgements or deltas in one batch
inline constexpr std::size_t kMaxPromptTokens = 4u << 20;  // ids in one request
inline constexpr std::size_t kMaxTextBytes = 16u << 20;    // one string: a text delta is the longest
inline constexpr std::size_t kMaxChunkLogprobs = 64u
                                                 << 10;  // places of one request in one delta: a chunk's rows at most
inline constexpr std::size_t kMaxTreeBytes = 16u << 20;  // a payload without its tensors
inline constexpr std::size_t kMaxTensors = 4096;         // of one payload
inline constexpr std::size_t kMaxParts = 4096;           // of one payload: blocks of bytes that a relay moves
inline constexpr uint64_t kMaxPartBytes = uint64_t{1} << 40;  // one of them; so no sum of them overflows
inline constexpr std::size_t kMaxPathBytes = 1024;            // of a tensor in a payload; also a key of one of its maps
inline constexpr std::size_t kMaxDTypeBytes = 16;             // an element type's name
inline constexpr std::size_t kMaxRank = 8;                    // extents of a tensor
inline constexpr std::size_t kMaxDescriptorBytes = 4096;      // of a relay's put
inline constexpr std::size_t kMaxInlineBytes = 1024;          // parts of a payload that travel in the message
inline constexpr std::size_t kMaxRelayAddressBytes = 1024;    // of a relay
inline constexpr std::size_t kMaxRelayNameBytes = 64;         // as a stage's name
inline constexpr std::size_t kMaxPeerRelays = 16;             // of one stage
inline constexpr std::size_t kMaxStageNameBytes = 64;         // letters, digits, '-', '_'
inline constexpr std::size_t kMaxModalityBytes = 64;          // of a chunk of an answer: "audio"
inline constexpr std::size_t kMaxTerminals = 64;              // of one request
inline constexpr std::size_t kMaxSources = 64;                // of one stage
inline constexpr std::size_t kMaxProbedRequests = 1024;       // in one probe, and in its report
inline constexpr std::size_t kMaxRouteHops = 64;              // of one request: the stages of a pipeline
inline constexpr std::size_t kMaxTraceparentBytes = 55;       // of W3C Trace Context, version 00
inline constexpr std::size_t kMaxEndpointBytes = 512;         // a socket's address
inline constexpr std::size_t kMaxHostBytes = 256;             // a host's name; also its boot id
inline constexpr std::size_t kMaxPeers = 1024;                // stages of one pipeline, replicas counted
inline constexpr std::size_t kMaxUnackedChunks = 256;         // of one stream, on their way
inline constexpr std::size_t kAckEveryChunks = 32;            // an acknowledgement after so many, and at the end
inline constexpr std::size_t kMaxUnackedClientBytes = 8u << 20;  // of one terminal and request, on their way
inline constexpr std::size_t kAckEveryClientBytes = 2u << 20;    // the coordinator acknowledges after so many
inline constexpr std::size_t kMaxGrammarBytes = 256 << 10;       // of a schema, an expression or a grammar
inline constexpr std::size_t kMaxRanges = 63;                    // of the layers of one model
inline constexpr std::size_t kMaxLayerSequences = 64 << 10;      // in one step of a chain of ranges
inline constexpr std::size_t kMaxLayerRowsBytes = 48u << 20;     // hidden rows in one message
inline constexpr std::size_t kMaxKvPartBytes = 48u << 20;        // KV pages in one message
inline constexpr std::size_t kMaxFeaturesBytes = 16u << 20;      // features of media in one message
inline constexpr int32_t kMaxFeatureSets = 64;                   // of each row
inline constexpr int64_t kMaxFeatureWidth = 1 << 20;             // values of each
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 1024;

inline constexpr std::size_t kMaxStopTokenIds = 256;
inline constexpr std::size_t kMaxLogitBiases = 1024;
inline constexpr std::size_t kMaxTopLogprobs = 256;
inline constexpr std::size_t kMaxLogprobTokenIds = 1024;
inline constexpr std::size_t kMaxErrorBytes = 4096;  // one error message
inline constexpr std::size_t kMaxNameBytes = 256;    // cache salts and other parts of the extra key

}  // namespace millrace::wire
