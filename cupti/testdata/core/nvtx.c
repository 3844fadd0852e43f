// SPDX-License-Identifier: Apache-2.0
//
// Calls NVTX as a program does whose NVTX has loaded us: through tables of function pointers that
// InitializeInjectionNvtx2 fills.

#include <wchar.h>

#include "core.h"

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id));

typedef void (*function)(void);
static function core[16], core2[16];
static function *core_table[16], *core2_table[16];

static int module_table(int module, function ***table, unsigned *size) {
  *size = 16;
  if (module == 1) *table = core_table;
  else if (module == 5) *table = core2_table;
  else return 0;
  return 1;
}

static const void *export_table(uint32_t id) {
  static const struct {
    size_t size;
    int (*module_table)(int, function ***, unsigned *);
  } callbacks = {sizeof callbacks, module_table};
  return id == 1 ? &callbacks : NULL;
}

typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void *message;
} attributes;

#define CALL(table, id, result, ...) ((result(*)(__VA_ARGS__))table[id])

static gpufl_scope_event events[100000];

int main(int argc, char **argv) {
  CHECK(argc == 2);
  for (int i = 1; i < 16; i++) {
    core_table[i] = &core[i];
    core2_table[i] = &core2[i];
  }
  CHECK(InitializeInjectionNvtx2(NULL) == 0);
  CHECK(InitializeInjectionNvtx2(export_table) == 1);
  int (*push_a)(const char *) = CALL(core, 9, int, const char *);
  int (*push_w)(const wchar_t *) = CALL(core, 10, int, const wchar_t *);
  int (*push_ex)(const attributes *) = CALL(core, 8, int, const attributes *);
  int (*pop)(void) = CALL(core, 11, int, void);
  uint64_t (*start_a)(const char *) = CALL(core, 5, uint64_t, const char *);
  void (*end)(uint64_t) = CALL(core, 7, void, uint64_t);
  void (*mark_a)(const char *) = CALL(core, 2, void, const char *);
  const char *(*create)(const char *) = CALL(core2, 12, const char *, const char *);
  const char *(*text)(const char *, const char *) = CALL(core2, 10, const char *, const char *, const char *);
  int (*domain_push)(const char *, const attributes *) = CALL(core2, 4, int, const char *, const attributes *);
  int (*domain_pop)(const char *) = CALL(core2, 5, int, const char *);
  CHECK(core[12] == NULL && core2[14] == NULL); // left to NVTX's own no-operation

  // Before anything is open: depths are right, nothing is recorded.
  const char *domain = create("library");
  const char *registered = text(domain, "registered");
  CHECK(domain != NULL && registered != NULL);
  CHECK(push_a("early") == 0 && push_a("early") == 1 && pop() == 1 && pop() == 0 && pop() < 0);
  mark_a("early");
  end(start_a("early"));
  CHECK(push_a("across the start") == 0);

  open_fakes(argv[1]);
  gpufl_config config = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = BASIC_KINDS, .detach = 1};
  CHECK(gpufl_open(&config) == GPUFL_OK);
  CHECK(gpufl_scope_events(events, 100) == 0);
  start_core();
  CHECK(pop() == 0);

  attributes plain = {.version = 3, .size = sizeof plain, .color_type = 1, .color = 0xFF00FF00, .message_type = 1, .message = "plain"};
  attributes of_domain = {.version = 3, .size = sizeof of_domain, .message_type = 3, .message = registered};
  attributes older = {.version = 1, .size = 20, .message_type = 1, .message = "not to be read"};
  CHECK(gpufl_push_scope(gpufl_next_scope_id()) == GPUFL_OK);
  CHECK(push_ex(&plain) == 0);
  CHECK(domain_push(domain, &of_domain) == 0); // depths are the domain's own
  CHECK(fake_run(1, 1, "elsewhere") == 0);     // on another thread
  CHECK(pop() == 0);                           // not the innermost: domains need not nest
  CHECK(push_w(L"h\u00e9 \U0001F600") == 0);
  CHECK(pop() == 0);
  CHECK(domain_pop(domain) == 0);
  CHECK(push_ex(&older) == 0 && pop() == 0);
  uint64_t range = start_a("range");
  mark_a("mark");
  end(range);
  end(range);  // twice
  end(123456); // never begun
  push_a("never ended");

  int n = gpufl_scope_events(events, 100000);
  CHECK(n == 12);
  uint64_t sdk = events[0].parent;
  CHECK(sdk != 0);
  CHECK(events[0].what == GPUFL_SCOPE_BEGIN && strcmp(events[0].name, "plain") == 0 && events[0].domain == NULL && events[0].color == 0xFF00FF00 && events[0].nested);
  CHECK(events[1].what == GPUFL_SCOPE_BEGIN && strcmp(events[1].name, "registered") == 0 && strcmp(events[1].domain, "library") == 0 && events[1].parent == events[0].id);
  CHECK(events[2].what == GPUFL_SCOPE_END && events[2].id == events[0].id);
  CHECK(events[3].what == GPUFL_SCOPE_BEGIN && strcmp(events[3].name, "h\xC3\xA9 \xF0\x9F\x98\x80") == 0 && events[3].parent == events[1].id);
  CHECK(events[4].what == GPUFL_SCOPE_END && events[4].id == events[3].id);
  CHECK(events[5].what == GPUFL_SCOPE_END && events[5].id == events[1].id);
  CHECK(events[6].what == GPUFL_SCOPE_BEGIN && events[6].name == NULL && events[7].id == events[6].id);
  CHECK(events[8].what == GPUFL_SCOPE_BEGIN && !events[8].nested && strcmp(events[8].name, "range") == 0 && events[8].parent == sdk);
  CHECK(events[9].what == GPUFL_SCOPE_MARK && strcmp(events[9].name, "mark") == 0);
  CHECK(events[10].what == GPUFL_SCOPE_END && events[10].id == events[8].id);
  CHECK(events[11].what == GPUFL_SCOPE_BEGIN);
  for (int i = 0; i < n; i++) {
    CHECK(events[i].thread == gpufl_thread() && events[i].time_ns > 1700000000000000000);
    CHECK(i == 0 || events[i].time_ns >= events[i - 1].time_ns);
  }

  // A flood: what does not fit is lost whole and counted.
  gpufl_stats stats;
  for (int i = 0; i < 50000; i++) {
    CHECK(push_a("flood") == 1);
    CHECK(pop() == 1);
  }
  n = gpufl_scope_events(events, 100000);
  int begins = 0;
  for (int i = 0; i < n; i++) begins += events[i].what == GPUFL_SCOPE_BEGIN ? 1 : -1;
  gpufl_get_stats(&stats);
  CHECK(begins == 0 && n > 60000 && stats.scopes_lost == 50000 - (uint64_t)n / 2);

  // Ranges that are never ended are bounded, too; those that are ended make room.
  uint64_t first = start_a("leak");
  for (int i = 1; i < 30000; i++) start_a("leak");
  n = gpufl_scope_events(events, 100000);
  CHECK(n == 1 << 14);
  CHECK(events[0].id == first);
  end(first);
  start_a("fits again");
  CHECK(gpufl_scope_events(events, 10) == 2 && strcmp(events[1].name, "fits again") == 0);

  // So are names.
  for (int i = 0; i < 50000; i++) {
    char name[32];
    snprintf(name, sizeof name, "name %d", i);
    push_a(name);
    pop();
    if (i % 10000 == 0) gpufl_scope_events(events, 100000);
  }
  push_a("one too many");
  n = gpufl_scope_events(events, 100000);
  CHECK(n > 0 && strcmp(events[n - 1].name, "_other") == 0);
  pop();

  CHECK(gpufl_stop() == GPUFL_OK);
  gpufl_scope_events(events, 100000);
  CHECK(push_a("late") == 1 && pop() == 1);
  CHECK(pop() == 0); // "never ended"
  end(start_a("late"));
  mark_a("late");
  CHECK(gpufl_scope_events(events, 10) == 0);

  // The next session does not depend on ranges of the last.
  start_core();
  end(first);
  push_a("second session");
  pop();
  CHECK(gpufl_scope_events(events, 10) == 2);

  // Ranges are recorded while CUPTI is detached, and one that is open then ends after the next
  // attach.
  CHECK(gpufl_suspend((int64_t)5e9) == GPUFL_OK && gpufl_finalize() == GPUFL_OK);
  push_a("detached");
  CHECK(gpufl_scope_events(events, 10) == 1 && events[0].what == GPUFL_SCOPE_BEGIN);
  uint64_t open = events[0].id;
  start_core();
  pop();
  CHECK(gpufl_scope_events(events, 10) == 1 && events[0].what == GPUFL_SCOPE_END && events[0].id == open);
  CHECK(gpufl_stop() == GPUFL_OK);
  CHECK(gpufl_finalize() == GPUFL_OK);
  CHECK(gpufl_close() == GPUFL_OK);
  push_a("after the end");
  pop();
  return 0;
}
