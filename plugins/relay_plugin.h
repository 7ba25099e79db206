/* The C interface of relay plugins: a transport that can read another process's registered memory and carry small
 * messages. Everything else (credits, deadlines, who may read what, checksums, liveness, bounded teardown) is the
 * host's business: src/relay/plugin. docs/relay.md tells how to write one.
 *
 * A plugin is a shared object relay_NAME.so that exports millrace_relay_plugin_v1(). It holds no state outside its
 * engines, throws nothing, prints nothing.
 *
 * Threads: all calls of one engine come from one thread, one at a time. No call but open(), connect() and close() may
 * wait; those should be quick, and where they hang the host goes on without the engine.
 *
 * Results: MILLRACE_RELAY_OK, _PENDING, or an error below 0. */
#ifndef MILLRACE_RELAY_PLUGIN_H
#define MILLRACE_RELAY_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MILLRACE_RELAY_ABI 1

#define MILLRACE_RELAY_OK 0
#define MILLRACE_RELAY_PENDING 1      /* not yet: ask again */
#define MILLRACE_RELAY_INVALID (-1)   /* an argument, a range, a blob that is not ours */
#define MILLRACE_RELAY_GONE (-2)      /* the peer cannot be reached any more */
#define MILLRACE_RELAY_EXHAUSTED (-3) /* too many of something */
#define MILLRACE_RELAY_FAILED (-4)    /* anything else */

#define MILLRACE_RELAY_MAX_BLOB 1024    /* bytes that say how an engine is reached */
#define MILLRACE_RELAY_MAX_MESSAGE 2048 /* bytes of one message */

typedef struct millrace_relay_engine millrace_relay_engine;

typedef struct millrace_relay_config {
  uint32_t struct_bytes; /* sizeof(millrace_relay_config) of the host: fields are only ever added */
  const char* name;      /* unique in the world: letters and digits */
  uint64_t memory_bytes; /* to register: a multiple of 4096 */
  const char* listen;    /* as the operator wrote it, or "" */
} millrace_relay_config;

typedef struct millrace_relay_plugin {
  uint32_t abi;          /* MILLRACE_RELAY_ABI */
  uint32_t struct_bytes; /* sizeof(millrace_relay_plugin) of the plugin */
  const char* name;      /* "nixl": at most 15 letters, digits and '_' */

  /* What it spans: 1 or 0. */
  uint8_t same_process, same_host, across_hosts, zero;

  /* OK, or why it cannot work here, as a sentence of at most `capacity` bytes with its 0. */
  int (*available)(char* reason, size_t capacity);

  /* An engine with memory_bytes of registered memory at *memory, aligned to 4096, which belongs to it and holds
   * until close(). On an error `reason` says why. */
  int (*open)(const millrace_relay_config* config, millrace_relay_engine** engine, void** memory, char* reason,
              size_t capacity);
  /* Ends all transfers and frees everything. Nothing of the engine is used after. */
  void (*close)(millrace_relay_engine* engine);

  /* How others reach this engine: at most MILLRACE_RELAY_MAX_BLOB bytes. */
  int (*blob)(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size);
  /* The blob comes from the network: trust nothing of it. An engine may connect to itself. */
  int (*connect)(millrace_relay_engine* engine, const void* blob, size_t size, uint64_t* peer);
  void (*disconnect)(millrace_relay_engine* engine, uint64_t peer);

  /* Begins to copy `bytes` bytes from the peer's registered memory to ours; offsets are into the memories, and the
   * peer's range is checked against what its blob said (INVALID). */
  int (*read)(millrace_relay_engine* engine, uint64_t peer, uint64_t from_offset, uint64_t to_offset, uint64_t bytes,
              uint64_t* transfer);
  /* PENDING, or how it ended; then the transfer is over and nobody writes to our memory any more. */
  int (*poll)(millrace_relay_engine* engine, uint64_t transfer);
  /* Asks for an early end. poll() still says when it is over. */
  void (*abandon)(millrace_relay_engine* engine, uint64_t transfer);

  /* One message to a peer. It may be lost, doubled or overtaken; it is never cut or damaged. PENDING: not taken. */
  int (*send)(millrace_relay_engine* engine, uint64_t peer, const void* message, size_t size);
  /* The next message that came, of whomever: OK with *size; PENDING where there is none. */
  int (*receive)(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size);
} millrace_relay_plugin;

/* The table, which holds as long as the library is loaded. */
const millrace_relay_plugin* millrace_relay_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif
