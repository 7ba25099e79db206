// Records which function calls which in a program compiled with -finstrument-functions, as one tree of calls for each
// thread. tools/route preloads it. The file that MILLRACE_ROUTE names is the interface: its first byte is the phase
// (0 nothing counts, 1 the idle server, 2 the request); 3 asks for the trees, which are then written to FILE.trees:
// lines "T thread", then "node parent address idle request". When they are there, the byte is 4.
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kNodes = 1 << 20, kSlots = 1 << 21, kDepth = 512, kThreads = 256 };

typedef struct {
  void* function;
  uint32_t parent, counts[3];
} Node;

// Its pages are the kernel's until they are written.
typedef struct {
  Node nodes[kNodes];
  uint32_t slots[kSlots], stack[kDepth], used, depth;
  long id;
} Tree;

static volatile uint8_t* phase;
static Tree* trees[kThreads];
static uint32_t tree_count;
static __thread Tree* own;
static uintptr_t base;  // of the program, which is loaded anywhere

static Tree* make_tree(void) {
  const uint32_t index = __atomic_fetch_add(&tree_count, 1, __ATOMIC_RELAXED);
  if (index >= kThreads) return NULL;
  Tree* tree = mmap(NULL, sizeof(Tree), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (tree == MAP_FAILED) return NULL;
  tree->used = 1;  // node 0 is the root
  tree->id = syscall(SYS_gettid);
  __atomic_store_n(&trees[index], tree, __ATOMIC_RELEASE);
  return tree;
}

static uint32_t child(Tree* tree, uint32_t parent, void* function) {
  uint64_t hash = ((uint64_t)(uintptr_t)function ^ ((uint64_t)parent << 40)) * 0x9E3779B97F4A7C15u;
  for (uint32_t slot = (uint32_t)(hash >> 43);; slot = (slot + 1) % kSlots) {
    const uint32_t found = tree->slots[slot];
    if (found && tree->nodes[found].parent == parent && tree->nodes[found].function == function) return found;
    if (found) continue;
    if (tree->used == kNodes) return 0;
    tree->slots[slot] = tree->used;
    tree->nodes[tree->used] = (Node){.function = function, .parent = parent};
    return tree->used++;
  }
}

void __cyg_profile_func_enter(void* function, void* site) {
  (void)site;
  if (!phase) return;
  if (!own && !(own = make_tree())) return;
  Tree* tree = own;
  if (tree->depth < kDepth) {
    const uint32_t node = child(tree, tree->depth ? tree->stack[tree->depth - 1] : 0, function);
    tree->stack[tree->depth] = node;
    if (*phase < 3) ++tree->nodes[node].counts[*phase];
  }
  ++tree->depth;
}

// A coroutine leaves a function that it did not enter on this stack: then nothing is popped.
void __cyg_profile_func_exit(void* function, void* site) {
  (void)site;
  Tree* tree = own;
  if (!phase || !tree) return;
  for (uint32_t depth = tree->depth; depth > 0; --depth) {
    if (depth <= kDepth && tree->nodes[tree->stack[depth - 1]].function != function) continue;
    tree->depth = depth - 1;
    return;
  }
}

static void write_trees(const char* path) {
  char name[4096];
  snprintf(name, sizeof(name), "%s.trees", path);
  FILE* out = fopen(name, "w");
  for (uint32_t i = 0; out && i < tree_count && i < kThreads; ++i) {
    const Tree* tree = __atomic_load_n(&trees[i], __ATOMIC_ACQUIRE);
    if (!tree) continue;
    fprintf(out, "T %ld\n", tree->id);
    for (uint32_t n = 1; n < tree->used; ++n) {
      const Node* node = &tree->nodes[n];
      fprintf(out, "%u %u %lx %u %u\n", n, node->parent, (unsigned long)((uintptr_t)node->function - base),
              node->counts[1], node->counts[2]);
    }
  }
  if (out) fclose(out);
}

static int first_object(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  *(uintptr_t*)data = info->dlpi_addr;
  return 1;
}

static void* watch(void* path) {
  while (*phase < 4) {
    if (*phase == 3) {
      write_trees(path);
      *phase = 4;
    }
    usleep(20000);
  }
  return NULL;
}

__attribute__((constructor)) static void begin(void) {
  dl_iterate_phdr(first_object, &base);
  const char* path = getenv("MILLRACE_ROUTE");
  const int file = path ? open(path, O_RDWR) : -1;
  if (file < 0) return;
  void* page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  pthread_t thread;
  if (page == MAP_FAILED) return;
  phase = page;
  if (pthread_create(&thread, NULL, watch, (void*)path) != 0) abort();
  pthread_detach(thread);
}
