// SPDX-License-Identifier: Apache-2.0
//
// Scopes of tasks: what a launch reads from a context that is laid out as CPython's, and the events
// of these scopes.

#include "core.h"
#include "gpufl_context.h"
#include "gpufl_scope.h"

// Objects with a reference count and a type, as CPython has them.
typedef struct {
  int64_t references;
  const void *type;
} object;
typedef struct {
  object head;
  char data[8];
} bytes;
typedef struct {
  object head;
  int64_t length;
  uint32_t bits;
  const void *items[6];
} bitmap;
typedef struct {
  object head;
  const void *items[32];
} array;
typedef struct {
  object head;
  const void *root;
} tree;
typedef struct {
  object head;
  const void *previous;
  const void *vars;
} context;
typedef struct {
  int64_t unused[5];
  const void *context;
} state;

static const char variable, other, context_type, tree_type, bitmap_type, array_type, bytes_type, no_type;
static __thread state *current_state;
static void *get_state(void) { return current_state; }

enum { HASH = 0x0000a863 }; // branches 3, 3, 10, 1, 0, 0, 0

static const gpufl_python layout = {
    .thread_state = get_state,
    .variable = &variable,
    .context_type = &context_type,
    .tree_type = &tree_type,
    .bitmap_type = &bitmap_type,
    .array_type = &array_type,
    .bytes_type = &bytes_type,
    .hash = HASH,
    .type = offsetof(object, type),
    .thread_context = offsetof(state, context),
    .context_tree = offsetof(context, vars),
    .tree_root = offsetof(tree, root),
    .bitmap_length = offsetof(bitmap, length),
    .bitmap_bits = offsetof(bitmap, bits),
    .bitmap_items = offsetof(bitmap, items),
    .array_items = offsetof(array, items),
    .bytes_data = offsetof(bytes, data),
};

static uint32_t correlation;

static uint64_t launch(void) {
  gpufl_scope_launch(++correlation);
  return gpufl_scope_of(correlation);
}

static void reads(uint64_t id) {
  bytes value = {{1, &bytes_type}, {0}};
  memcpy(value.data, &id, sizeof id);
  // The variable is the second of two in the last node.
  bitmap leaf = {{1, &bitmap_type}, 4, 1u << 3 | 1u << 1, {&other, &value.head, &variable, &value}};
  array middle = {{1, &array_type}, {0}};
  bitmap root = {{1, &bitmap_type}, 2, 1u << 3, {NULL, &leaf}};
  tree t = {{1, &tree_type}, &leaf};
  context c = {{1, &context_type}, NULL, &t};
  state s = {.context = &c};

  current_state = NULL;
  CHECK(launch() == 0);
  current_state = &s;
  CHECK(launch() == id);

  // Another level, and an array.
  t.root = &root;
  CHECK(launch() == id);
  middle.items[3] = &leaf;
  t.root = &middle;
  CHECK(launch() == id);
  middle.items[3] = NULL;
  CHECK(launch() == 0);
  t.root = &leaf;

  // Whatever is not as expected ends the search.
  leaf.items[2] = &other;
  CHECK(launch() == 0);
  leaf.items[2] = &variable;
  leaf.bits = 1u << 1;
  CHECK(launch() == 0);
  leaf.bits = 1u << 3 | 1u << 1;
  leaf.length = 2;
  CHECK(launch() == 0);
  leaf.length = -4;
  CHECK(launch() == 0);
  leaf.length = 4;
  value.head.type = &no_type;
  CHECK(launch() == 0);
  value.head.type = &bytes_type;
  leaf.head.type = &no_type;
  CHECK(launch() == 0);
  leaf.head.type = &bitmap_type;
  t.head.type = &no_type;
  CHECK(launch() == 0);
  t.head.type = &tree_type;
  c.head.type = &no_type;
  CHECK(launch() == 0);
  c.head.type = &context_type;
  leaf.items[3] = NULL;
  CHECK(launch() == 0);
  leaf.items[3] = &value;
  t.root = NULL;
  CHECK(launch() == 0);
  t.root = &leaf;
  c.vars = NULL;
  CHECK(launch() == 0);
  c.vars = &t;
  s.context = NULL;
  CHECK(launch() == 0);
  s.context = &c;

  // A value that is no id is not one.
  uint64_t wrong = gpufl_next_scope_id() + 1;
  memcpy(value.data, &wrong, sizeof wrong);
  CHECK(launch() == 0);
  memcpy(value.data, &id, sizeof id);

  // The scope that began last is the innermost.
  CHECK(launch() == id);
  gpufl_nvtx_push(NULL, "later", 0);
  CHECK(launch() > id);
  gpufl_scope_event e;
  CHECK(gpufl_scope_events(&e, 1) == 1 && e.what == GPUFL_SCOPE_BEGIN && e.parent == id && !e.program);
  gpufl_nvtx_pop(NULL);
  CHECK(gpufl_scope_events(&e, 1) == 1 && e.what == GPUFL_SCOPE_END);
  CHECK(launch() == id);

  CHECK(gpufl_recorder_python(NULL) == 0);
  CHECK(launch() == 0);
  CHECK(gpufl_recorder_python(&layout) == 0);
  CHECK(launch() == id);
  current_state = NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  gpufl_scope_event e[4];
  gpufl_context_scope scope = {.name = "early", .time_ns = 5};
  CHECK(gpufl_recorder_begin(&scope) == 0); // before recording
  CHECK(gpufl_recorder_id(100) == 101);
  CHECK(gpufl_recorder_id(7) == 102);
  CHECK(gpufl_recorder_python(&layout) == 0);

  open_fakes(argv[1]);
  open_core(BASIC_KINDS & ~(1u << GPUFL_KIND_NVTX)); // these scopes are not NVTX's
  start_core();
  scope.name = "outer";
  uint64_t outer = gpufl_recorder_begin(&scope);
  CHECK(outer == 103);
  static const uint8_t trace[16] = {1, 2, 16}, span[8] = {3, 8};
  scope = (gpufl_context_scope){.id = 104, .parent = outer, .time_ns = 6, .name = "GET /", .trace = trace, .span = span, .sampled = 1};
  CHECK(gpufl_recorder_begin(&scope) == 104);
  gpufl_recorder_end(104);
  gpufl_recorder_end(0);
  CHECK(gpufl_scope_events(e, 4) == 3);
  CHECK(e[0].what == GPUFL_SCOPE_BEGIN && e[0].id == outer && e[0].parent == 0 && e[0].time_ns == 5 && e[0].program && e[0].nested);
  CHECK(strcmp(e[0].name, "outer") == 0);
  CHECK(e[1].what == GPUFL_SCOPE_SPAN && e[1].id == 104 && e[1].parent == outer && e[1].sampled);
  CHECK(memcmp(e[1].trace, trace, 16) == 0 && memcmp(e[1].span, span, 8) == 0);
  CHECK(e[2].what == GPUFL_SCOPE_END && e[2].id == 104 && e[2].time_ns > 6);

  CHECK(gpufl_stop() == GPUFL_OK);
  take_all(1000000000);
  CHECK(gpufl_recorder_begin(&scope) == 0); // after recording
  CHECK(gpufl_close() == GPUFL_OK);

  open_core(BASIC_KINDS);
  start_core();
  uint64_t id = gpufl_recorder_begin(&(gpufl_context_scope){.name = "read", .time_ns = 7});
  CHECK(id > outer && gpufl_scope_events(e, 4) == 1 && e[0].id == id);
  reads(id);

  pid_t child = fork();
  if (child == 0) {
    CHECK(gpufl_recorder_id(0) == 0 && gpufl_recorder_begin(&scope) == 0);
    gpufl_recorder_end(id);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
