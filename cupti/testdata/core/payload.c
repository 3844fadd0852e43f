// SPDX-License-Identifier: Apache-2.0
//
// Calls NVTX as NCCL does: registers schemas by the payload extension, and pushes ranges with payloads.

#include "core.h"

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id));

typedef struct {
  size_t id, num_slots;
  intptr_t *slots;
} segment;
typedef struct {
  uint16_t version, size, module, compatible;
  size_t num_segments;
  segment *segments;
  void *export_function;
  const void *info;
} extension;
int InitializeInjectionNvtxExtension(extension *e);

typedef struct {
  uint64_t flags, type;
  const char *name, *description;
  uint64_t detail, offset;
  void *semantics, *reserved;
} entry;
typedef struct {
  uint64_t mask;
  const char *name;
  uint64_t type, flags;
  const entry *entries;
  size_t num_entries, static_size, align;
  uint64_t id;
  void *more;
} schema;
typedef struct {
  uint64_t schema;
  size_t size;
  const void *data;
} payload;
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

typedef void (*function)(void);
static function core[16], core2[16];
static function *core_table[16], *core2_table[16];

static int module_table(int module, function ***table, unsigned *size) {
  *size = 16;
  *table = module == 1 ? core_table : core2_table;
  return module == 1 || module == 5;
}

static const void *export_table(uint32_t id) {
  static const struct {
    size_t size;
    int (*module_table)(int, function ***, unsigned *);
  } callbacks = {sizeof callbacks, module_table};
  return id == 1 ? &callbacks : NULL;
}

enum { EXTENDED = (int32_t)0xDFBD0009, FIELDS = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8, SIZE = 22, UINT64 = 18, INT = 5, FIRST = 1 << 24 };

static const char *nccl, *other;
static uint64_t (*schema_register)(const char *, const schema *);
static int (*domain_push)(const char *, const attributes *);
static int (*domain_pop)(const char *);

// recorded pushes a range and returns its size.
static uint64_t recorded(const char *domain, attributes a) {
  gpufl_scope_event events[4];
  a.version = 3;
  if (a.size == 0) a.size = sizeof a;
  a.message_type = 1;
  a.message = "ncclAllReduce";
  CHECK(domain_push(domain, &a) == 0 && domain_pop(domain) == 0);
  CHECK(gpufl_scope_events(events, 4) == 2 && events[0].what == GPUFL_SCOPE_BEGIN && events[1].collective_bytes == 0);
  return events[0].collective_bytes;
}

static uint64_t of(uint64_t id, size_t size, const void *data) {
  payload list[] = {{id, size, data}};
  return recorded(nccl, (attributes){.payload_type = EXTENDED, .reserved = 1, .payload = (uintptr_t)list});
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  for (int i = 1; i < 16; i++) {
    core_table[i] = &core[i];
    core2_table[i] = &core2[i];
  }
  CHECK(InitializeInjectionNvtx2(export_table) == 1);
  domain_push = (int (*)(const char *, const attributes *))core2[4];
  domain_pop = (int (*)(const char *))core2[5];
  const char *(*create)(const char *) = (const char *(*)(const char *))core2[12];
  nccl = create("NCCL");
  other = create("other");

  // Extensions that are not this one, or have another form, are refused.
  intptr_t slots[63] = {0};
  segment slot = {0, 63, slots}, empty = {0, 0, slots}, none = {0, 63, NULL};
  extension good = {3, sizeof good, 2, 0x0104, 1, &slot, NULL, NULL}, bad;
#define REFUSED(field, value) \
  bad = good;                 \
  bad.field = value;          \
  CHECK(InitializeInjectionNvtxExtension(&bad) == 0)
  CHECK(InitializeInjectionNvtxExtension(NULL) == 0);
  REFUSED(size, 8);
  REFUSED(module, 1);
  REFUSED(compatible, 0x0203);
  REFUSED(num_segments, 0);
  REFUSED(segments, NULL);
  REFUSED(segments, &empty);
  REFUSED(segments, &none);
  CHECK(slots[0] == 0);

  // Only the slots that exist are set.
  segment four = {0, 4, slots};
  extension small = good;
  small.segments = &four;
  CHECK(InitializeInjectionNvtxExtension(&small) == 1);
  CHECK(slots[0] != 0 && slots[1] == 0 && slots[2] != 0 && slots[3] != 0 && slots[4] == 0);
  CHECK(InitializeInjectionNvtxExtension(&good) == 1);
  CHECK(slots[1] == 0 && slots[4] != 0 && slots[5] != 0 && slots[6] != 0 && slots[7] == 0);
  schema_register = (uint64_t (*)(const char *, const schema *))slots[0];

  open_fakes(argv[1]);
  open_core(BASIC_KINDS);
  start_core();

  // NCCL 2.28: the communicator, the size, the operation.
  struct {
    uint64_t communicator;
    size_t bytes;
    int operation;
  } data = {7, 4194304, 0};
  entry entries[] = {
      {0, UINT64, "NCCL communicator ID", NULL, 0, 0, NULL, NULL},
      {0, SIZE, "Message size [bytes]", NULL, 0, 8, NULL, NULL},
      {0, FIRST + 11, "Reduction operation", NULL, 0, 16, NULL, NULL},
      {0, 0, NULL, NULL, 0, 0, NULL, NULL},
  };
  schema reduce = {FIELDS, "AllReduce", 1, 0, entries, 3, 24, 0, FIRST + 5, NULL};
  CHECK(of(FIRST + 5, sizeof data, &data) == 0); // not registered
  CHECK(schema_register(nccl, &reduce) == FIRST + 5);
  CHECK(of(FIRST + 5, sizeof data, &data) == 4194304);
  CHECK(schema_register(nccl, &reduce) == FIRST + 5); // the same layout, of another copy of the library
  CHECK(of(FIRST + 5, sizeof data, &data) == 4194304);

  // NCCL 2.18: the size alone.
  size_t bytes = 4096;
  entry first[] = {{0, SIZE, "Bytes", NULL, 0, 0, NULL, NULL}};
  schema gather = {FIELDS, "AllGather", 1, 0, first, 1, 0, 0, FIRST + 4, NULL};
  CHECK(schema_register(nccl, &gather) == FIRST + 4);
  CHECK(of(FIRST + 4, sizeof bytes, &bytes) == 4096);

  // The second payload has the size.
  payload two[] = {{FIRST + 60, 8, &bytes}, {FIRST + 4, 8, &bytes}};
  attributes a = {.payload_type = EXTENDED, .reserved = 2, .payload = (uintptr_t)two};
  CHECK(recorded(nccl, a) == 4096);

  // Marks and ranges of the extension.
  void (*mark)(const char *, const payload *, size_t) = (void (*)(const char *, const payload *, size_t))slots[2];
  int (*push)(const char *, const payload *, size_t) = (int (*)(const char *, const payload *, size_t))slots[3];
  int (*pop)(const char *, const payload *, size_t) = (int (*)(const char *, const payload *, size_t))slots[4];
  uint64_t (*start)(const char *, const payload *, size_t) = (uint64_t (*)(const char *, const payload *, size_t))slots[5];
  void (*end)(const char *, uint64_t, const payload *, size_t) = (void (*)(const char *, uint64_t, const payload *, size_t))slots[6];
  gpufl_scope_event events[16];
  attributes init = {.version = 3, .size = sizeof init, .message_type = 1, .message = "ncclCommInitRankConfig"};
  CHECK(pop(nccl, two, 2) < 0);
  CHECK(domain_push(nccl, &init) == 0 && pop(nccl, two, 2) == 0 && domain_pop(nccl) < 0);
  CHECK(push(nccl, two, 2) == 0 && domain_push(nccl, &init) == 1 && pop(other, two, 2) < 0);
  CHECK(pop(nccl, two, 2) == 1 && domain_pop(nccl) == 0);
  mark(other, NULL, 0);
  uint64_t range = start(other, two, 2);
  end(other, range, two, 2);
  end(other, range, NULL, 0); // twice
  CHECK(gpufl_scope_events(events, 16) == 9);
  CHECK(events[0].what == GPUFL_SCOPE_BEGIN && strcmp(events[0].name, "ncclCommInitRankConfig") == 0 && events[0].nested);
  CHECK(events[1].what == GPUFL_SCOPE_END && events[1].id == events[0].id && events[1].nested);
  CHECK(events[2].what == GPUFL_SCOPE_BEGIN && events[2].name == NULL && events[2].domain == nccl && events[2].collective_bytes == 4096 && events[2].parent == events[0].parent);
  CHECK(events[3].what == GPUFL_SCOPE_BEGIN && events[3].parent == events[2].id);
  CHECK(events[4].what == GPUFL_SCOPE_END && events[4].id == events[3].id && events[5].what == GPUFL_SCOPE_END && events[5].id == events[2].id);
  CHECK(events[6].what == GPUFL_SCOPE_MARK && events[6].name == NULL && events[6].domain == other);
  CHECK(events[7].what == GPUFL_SCOPE_BEGIN && events[7].domain == other && !events[7].nested && events[7].id == range);
  CHECK(events[8].what == GPUFL_SCOPE_END && events[8].id == range);

  // Without a size: other domains, other types of payloads, none, fewer, shorter and unknown ones.
  CHECK(recorded(other, a) == 0 && recorded(NULL, a) == 0);
  a.reserved = 1;
  CHECK(recorded(nccl, a) == 0);
  a.reserved = -1;
  CHECK(recorded(nccl, a) == 0);
  a.reserved = 2;
  a.payload_type = 1;
  CHECK(recorded(nccl, a) == 0);
  a.payload_type = EXTENDED;
  a.payload = 0;
  CHECK(recorded(nccl, a) == 0);
  a.payload = 1; // not to be read
  a.size = 20;
  CHECK(recorded(nccl, a) == 0);
  CHECK(of(FIRST + 5, 15, &data) == 0 && of(FIRST + 5, 16, &data) == 4194304 && of(FIRST + 5, 0, &data) == 0);
  CHECK(of(FIRST + 5, SIZE_MAX, &data) == 0 && of(FIRST + 5, sizeof data, NULL) == 0);
  CHECK(of(5, sizeof data, &data) == 0 && of(FIRST + 64, sizeof data, &data) == 0 && of(UINT64_MAX, sizeof data, &data) == 0);
  bytes = SIZE_MAX;
  CHECK(of(FIRST + 4, sizeof bytes, &bytes) == 0);

  // Malformed schemas have no size, and leave the others as they are.
  uint64_t id = FIRST + 20;
#define WITHOUT(what, change)                                           \
  do {                                                                  \
    entry e[4];                                                         \
    memcpy(e, entries, sizeof e);                                       \
    schema s = reduce;                                                  \
    s.entries = e;                                                      \
    s.id = id;                                                          \
    change;                                                             \
    schema_register(what, &s);                                          \
    CHECK(of(id, sizeof data, &data) == 0);                             \
    id++;                                                               \
  } while (0)
  WITHOUT(other, (void)0);
  WITHOUT(NULL, (void)0);
  WITHOUT(nccl, s.mask &= ~(1ull << 8));
  WITHOUT(nccl, s.mask &= ~(1ull << 4));
  WITHOUT(nccl, s.type = 2);
  WITHOUT(nccl, s.entries = NULL);
  WITHOUT(nccl, s.num_entries = 0);
  WITHOUT(nccl, s.num_entries = 1);
  WITHOUT(nccl, s.num_entries = SIZE_MAX);
  WITHOUT(nccl, e[1].type = INT);
  WITHOUT(nccl, e[1].flags = 1 << 1);
  WITHOUT(nccl, e[1].name = NULL);
  WITHOUT(nccl, e[1].name = "Message size");
  WITHOUT(nccl, e[1].offset = 0);
  WITHOUT(nccl, e[1].offset = 4097);
  WITHOUT(nccl, e[1].offset = UINT64_MAX);
  WITHOUT(nccl, s.id = UINT64_MAX);
  CHECK(schema_register(nccl, NULL) == 0);
  CHECK(of(FIRST + 5, sizeof data, &data) == 4194304);

  // Another library with another layout under the same number.
  gather.id = FIRST + 5;
  CHECK(schema_register(nccl, &gather) == FIRST + 5 && of(FIRST + 5, sizeof data, &data) == 0);
  CHECK(schema_register(nccl, &reduce) == FIRST + 5 && of(FIRST + 5, sizeof data, &data) == 0);

  pid_t child = fork();
  if (child == 0) {
    CHECK(schema_register(nccl, &reduce) == 0 && InitializeInjectionNvtxExtension(&good) == 0);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(gpufl_stop() == GPUFL_OK && gpufl_close() == GPUFL_OK);
  return 0;
}
