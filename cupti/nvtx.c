// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

// This file is NVTX's injection library. The first NVTX call of a program opens the library that
// NVTX_INJECTION64_PATH names and calls InitializeInjectionNvtx2. That function stores our
// functions in NVTX's tables, and the program then calls them directly. CUPTI's own NVTX records
// use the same interface, cost more, and do not relate launches to ranges. Source: NVTX 3,
// nvtxDetail/nvtxTypes.h and nvToolsExt.h. Of payloads, only the size of a collective is read:
// nvToolsExtPayload.h and nvtxDetail/nvtxExtTypes.h, and src/collectives.cc of NCCL.

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <wchar.h>

#include "gpufl_scope.h"

// nvtxEventAttributes_t, version 2 (since NVTX 2).
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
_Static_assert(offsetof(attributes, message) == 40 && sizeof(attributes) == 48,
               "nvtxEventAttributes_t");

enum { COLOR_ARGB = 1, MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };

// NvtxExportTableID, NvtxCallbackModule, NvtxCallbackIdCore, NvtxCallbackIdCore2.
enum { TABLE_CALLBACKS = 1 };
enum { MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum {
  CORE_MARK_EX = 1,
  CORE_MARK_A = 2,
  CORE_MARK_W = 3,
  CORE_START_EX = 4,
  CORE_START_A = 5,
  CORE_START_W = 6,
  CORE_END = 7,
  CORE_PUSH_EX = 8,
  CORE_PUSH_A = 9,
  CORE_PUSH_W = 10,
  CORE_POP = 11,
};
enum {
  CORE2_MARK_EX = 1,
  CORE2_START_EX = 2,
  CORE2_END = 3,
  CORE2_PUSH_EX = 4,
  CORE2_POP = 5,
  CORE2_REGISTER_A = 10,
  CORE2_REGISTER_W = 11,
  CORE2_CREATE_A = 12,
  CORE2_CREATE_W = 13,
};

typedef void (*function)(void);
typedef struct {
  size_t struct_size;
  int (*module_table)(int module, function ***table, unsigned *size);
} callbacks_table;

enum { TEXT_BYTES = 1028 };

// utf8 converts a wide text to UTF-8 and truncates it to the buffer. It returns NULL for NULL.
static const char *utf8(const wchar_t *wide, char out[TEXT_BYTES]) {
  if (wide == NULL) return NULL;
  size_t n = 0;
  for (; *wide != 0 && n + 4 < TEXT_BYTES; wide++) {
    uint32_t c = (uint32_t)*wide;
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
    if (c < 0x80) {
      out[n++] = (char)c;
    } else if (c < 0x800) {
      out[n++] = (char)(0xC0 | c >> 6);
      out[n++] = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      out[n++] = (char)(0xE0 | c >> 12);
      out[n++] = (char)(0x80 | (c >> 6 & 0x3F));
      out[n++] = (char)(0x80 | (c & 0x3F));
    } else {
      out[n++] = (char)(0xF0 | c >> 18);
      out[n++] = (char)(0x80 | (c >> 12 & 0x3F));
      out[n++] = (char)(0x80 | (c >> 6 & 0x3F));
      out[n++] = (char)(0x80 | (c & 0x3F));
    }
  }
  out[n] = 0;
  return out;
}

// The handle of a registered text or of a domain is the interned text itself.

static const char *message(const attributes *a, char buffer[TEXT_BYTES]) {
  // A program with an older NVTX has a shorter struct: its missing fields are not read.
  if (a == NULL || a->size < sizeof *a) return NULL;
  switch (a->message_type) {
    case MESSAGE_ASCII:
    case MESSAGE_REGISTERED:
      return a->message;
    case MESSAGE_UNICODE:
      return utf8(a->message, buffer);
    default:
      return NULL;
  }
}

static uint32_t color(const attributes *a) {
  return a != NULL && a->size >= sizeof *a && a->color_type == COLOR_ARGB ? a->color : 0;
}

// ---- the size of a collective ----

// NCCL since 2.18 gives the ranges of its collectives a payload: a struct, whose layout it registers
// as a schema with a number of its own. Without a schema the size is unknown.

// nvtxPayloadSchemaEntry_t, nvtxPayloadSchemaAttr_t and nvtxPayloadData_t. Later versions have more
// fields at the end of the second one, which are not read.
typedef struct {
  uint64_t flags, type;
  const char *name, *description;
  uint64_t detail, offset;
  const void *semantics, *reserved;
} schema_entry;
typedef struct {
  uint64_t mask;
  const char *name;
  uint64_t type, flags;
  const schema_entry *entries;
  size_t num_entries, static_size, align;
  uint64_t id;
} schema;
typedef struct {
  uint64_t schema;
  size_t size;
  const void *data;
} payload;
_Static_assert(sizeof(schema_entry) == 64 && sizeof(schema) == 72 && sizeof(payload) == 24,
               "NVTX payloads");

// nvtxExtModuleSegment_t and nvtxExtModuleInfo_t.
typedef struct {
  size_t id, num_slots;
  intptr_t *slots;
} extension_segment;
typedef struct {
  uint16_t version, size, module, compatible;
  size_t num_segments;
  extension_segment *segments;
  void *export_function;
  const void *info;
} extension;

enum {
  PAYLOAD_EXTENDED = (int32_t)0xDFBD0009, // NVTX_PAYLOAD_TYPE_EXT
  // NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE, _ENTRIES, _NUM_ENTRIES and _SCHEMA_ID
  SCHEMA_FIELDS = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8,
  SCHEMA_STATIC = 1,        // NVTX_PAYLOAD_SCHEMA_TYPE_STATIC
  ENTRY_SIZE = 22,          // NVTX_PAYLOAD_ENTRY_TYPE_SIZE: size_t
  FIRST_SCHEMA = 1 << 24,   // NVTX_PAYLOAD_SCHEMA_ID_STATIC_START
  EXTENSION_PAYLOAD = 2,    // NVTX_EXT_PAYLOAD_MODULEID
  COMPATIBLE_PAYLOAD = 1,   // the high byte of NVTX_EXT_PAYLOAD_COMPATID
  // NVTX3EXT_CBID_nvtx…
  SLOT_SCHEMA_REGISTER = 0,
  SLOT_MARK = 2,
  SLOT_PUSH = 3,
  SLOT_POP = 4,
  SLOT_START = 5,
  SLOT_END = 6,
  // Ours. NCCL 2.28 has 15 schemas of at most 7 entries, and structs of at most 40 bytes.
  MAX_SCHEMAS = 64,
  MAX_ENTRIES = 64,
  MAX_OFFSET = 4096,
  MAX_PAYLOADS = 16,
};

// sizes has for each schema of NCCL the offset of the size, plus 1. 0 is none. Two libraries with
// different layouts under one number have no size.
static _Atomic uint32_t sizes[MAX_SCHEMAS];
#define CONFLICT UINT32_MAX

static const char nccl_domain[] = "NCCL";

// size_offset returns the offset of the size of a collective plus 1, or 0.
static uint32_t size_offset(const schema *s) {
  if (s->type != SCHEMA_STATIC || s->entries == NULL || s->num_entries > MAX_ENTRIES) return 0;
  for (size_t i = 0; i < s->num_entries; i++) {
    const schema_entry *e = &s->entries[i];
    if (e->type != ENTRY_SIZE || e->flags != 0 || e->name == NULL) continue;
    // Broadcast, send and receive have the second name in the first versions.
    if (strcmp(e->name, "Message size [bytes]") != 0 && strcmp(e->name, "Bytes") != 0) continue;
    // The offset of an entry that is not the first is unknown if it is 0.
    return e->offset <= MAX_OFFSET && (i == 0 || e->offset != 0) ? (uint32_t)e->offset + 1 : 0;
  }
  return 0;
}

static uint64_t schema_register(const char *domain, const schema *s) {
  if (gpufl_is_child() || s == NULL || (s->mask & SCHEMA_FIELDS) != SCHEMA_FIELDS) return 0;
  uint64_t number = s->id - FIRST_SCHEMA;
  if (domain == NULL || strcmp(domain, nccl_domain) != 0 || number >= MAX_SCHEMAS) return s->id;
  uint32_t offset = size_offset(s), old = 0;
  if (offset != 0 && !atomic_compare_exchange_strong(&sizes[number], &old, offset) && old != offset) {
    atomic_store(&sizes[number], CONFLICT);
  }
  return s->id;
}

// payload_bytes returns the size that NCCL states in payloads of a range, or 0.
static uint64_t payload_bytes(const char *domain, const payload *list, size_t n) {
  if (domain == NULL || strcmp(domain, nccl_domain) != 0 || list == NULL) return 0;
  for (size_t i = 0; i < n && i < MAX_PAYLOADS; i++) {
    uint64_t number = list[i].schema - FIRST_SCHEMA, bytes;
    uint32_t offset = number < MAX_SCHEMAS ? atomic_load(&sizes[number]) : 0;
    if (offset == 0 || offset == CONFLICT || list[i].data == NULL) continue;
    offset--;
    // SIZE_MAX is an unknown size.
    if (list[i].size == SIZE_MAX || list[i].size < offset + sizeof bytes) continue;
    memcpy(&bytes, (const char *)list[i].data + offset, sizeof bytes);
    return bytes <= INT64_MAX ? bytes : 0;
  }
  return 0;
}

static uint64_t collective_bytes(const char *domain, const attributes *a) {
  if (a == NULL || a->size < sizeof *a || a->payload_type != PAYLOAD_EXTENDED || a->reserved < 0) return 0;
  return payload_bytes(domain, (const payload *)(uintptr_t)a->payload, (size_t)a->reserved);
}

// ---- marks and ranges ----

static void domain_mark_ex(const char *domain, const attributes *a) {
  char buffer[TEXT_BYTES];
  gpufl_nvtx_mark(domain, message(a, buffer), color(a));
}
static void mark_ex(const attributes *a) { domain_mark_ex(NULL, a); }
static void mark_a(const char *text) { gpufl_nvtx_mark(NULL, text, 0); }
static void mark_w(const wchar_t *text) {
  char buffer[TEXT_BYTES];
  gpufl_nvtx_mark(NULL, utf8(text, buffer), 0);
}

static uint64_t domain_start_ex(const char *domain, const attributes *a) {
  char buffer[TEXT_BYTES];
  return gpufl_nvtx_start(domain, message(a, buffer), color(a));
}
static uint64_t start_ex(const attributes *a) { return domain_start_ex(NULL, a); }
static uint64_t start_a(const char *text) { return gpufl_nvtx_start(NULL, text, 0); }
static uint64_t start_w(const wchar_t *text) {
  char buffer[TEXT_BYTES];
  return gpufl_nvtx_start(NULL, utf8(text, buffer), 0);
}
static void domain_end(const char *domain, uint64_t id) {
  (void)domain;
  gpufl_nvtx_end(id);
}
static void end(uint64_t id) { gpufl_nvtx_end(id); }

static int domain_push_ex(const char *domain, const attributes *a) {
  char buffer[TEXT_BYTES];
  return gpufl_nvtx_push(domain, message(a, buffer), color(a), collective_bytes(domain, a));
}
static int push_ex(const attributes *a) { return domain_push_ex(NULL, a); }
static int push_a(const char *text) { return gpufl_nvtx_push(NULL, text, 0, 0); }
static int push_w(const wchar_t *text) {
  char buffer[TEXT_BYTES];
  return gpufl_nvtx_push(NULL, utf8(text, buffer), 0, 0);
}
static int domain_pop(const char *domain) { return gpufl_nvtx_pop(domain); }
static int pop(void) { return gpufl_nvtx_pop(NULL); }

// The payload extension has marks and ranges whose name is in a payload. The name is not read. NCCL
// 2.28 ends ranges of communicators with it that it began with domain_push_ex. A payload at the end
// of a range is not read: NCCL states the size of a collective at the begin.
static void payload_mark(const char *domain, const payload *list, size_t n) {
  (void)list, (void)n;
  gpufl_nvtx_mark(domain, NULL, 0);
}
static int payload_push(const char *domain, const payload *list, size_t n) {
  return gpufl_nvtx_push(domain, NULL, 0, payload_bytes(domain, list, n));
}
static int payload_pop(const char *domain, const payload *list, size_t n) {
  (void)list, (void)n;
  return gpufl_nvtx_pop(domain);
}
static uint64_t payload_start(const char *domain, const payload *list, size_t n) {
  (void)list, (void)n;
  return gpufl_nvtx_start(domain, NULL, 0);
}
static void payload_end(const char *domain, uint64_t id, const payload *list, size_t n) {
  (void)domain, (void)list, (void)n;
  gpufl_nvtx_end(id);
}

static const char *register_a(const char *domain, const char *text) {
  (void)domain;
  return gpufl_intern(text);
}
static const char *register_w(const char *domain, const wchar_t *text) {
  char buffer[TEXT_BYTES];
  (void)domain;
  return gpufl_intern(utf8(text, buffer));
}
static const char *create_a(const char *text) { return gpufl_intern(text); }
static const char *create_w(const wchar_t *text) {
  char buffer[TEXT_BYTES];
  return gpufl_intern(utf8(text, buffer));
}

// set stores a function in a table. The entries of a table are addresses of NVTX's variables.
static void set(function **table, unsigned size, unsigned id, function f) {
  if (id < size && table[id] != NULL) *table[id] = f;
}

#define F(f) ((function)(f))

// NVTX calls InitializeInjectionNvtx2 once for each library or executable that contains NVTX, on
// the thread of its first NVTX call. It returns 1, or 0 if the tables are unavailable. Outside
// gpufl_start and gpufl_stop the functions record nothing.
__attribute__((visibility("default"), used)) int InitializeInjectionNvtx2(
    const void *(*export_table)(uint32_t id));

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id)) {
  if (gpufl_is_child() || export_table == NULL) return 0;
  const callbacks_table *callbacks = export_table(TABLE_CALLBACKS);
  if (callbacks == NULL || callbacks->struct_size < sizeof *callbacks ||
      callbacks->module_table == NULL) {
    return 0;
  }
  function **core = NULL, **core2 = NULL;
  unsigned core_size = 0, core2_size = 0;
  if (!callbacks->module_table(MODULE_CORE, &core, &core_size) || core == NULL) return 0;
  set(core, core_size, CORE_MARK_EX, F(mark_ex));
  set(core, core_size, CORE_MARK_A, F(mark_a));
  set(core, core_size, CORE_MARK_W, F(mark_w));
  set(core, core_size, CORE_START_EX, F(start_ex));
  set(core, core_size, CORE_START_A, F(start_a));
  set(core, core_size, CORE_START_W, F(start_w));
  set(core, core_size, CORE_END, F(end));
  set(core, core_size, CORE_PUSH_EX, F(push_ex));
  set(core, core_size, CORE_PUSH_A, F(push_a));
  set(core, core_size, CORE_PUSH_W, F(push_w));
  set(core, core_size, CORE_POP, F(pop));
  // Version 2 of NVTX added domains.
  if (callbacks->module_table(MODULE_CORE2, &core2, &core2_size) && core2 != NULL) {
    set(core2, core2_size, CORE2_MARK_EX, F(domain_mark_ex));
    set(core2, core2_size, CORE2_START_EX, F(domain_start_ex));
    set(core2, core2_size, CORE2_END, F(domain_end));
    set(core2, core2_size, CORE2_PUSH_EX, F(domain_push_ex));
    set(core2, core2_size, CORE2_POP, F(domain_pop));
    set(core2, core2_size, CORE2_REGISTER_A, F(register_a));
    set(core2, core2_size, CORE2_REGISTER_W, F(register_w));
    set(core2, core2_size, CORE2_CREATE_A, F(create_a));
    set(core2, core2_size, CORE2_CREATE_W, F(create_w));
  }
  return 1;
}

// NVTX calls InitializeInjectionNvtxExtension for each extension that a library of the program uses,
// after InitializeInjectionNvtx2. 0 makes the functions of the extension do nothing.
__attribute__((visibility("default"), used)) int InitializeInjectionNvtxExtension(extension *e);

int InitializeInjectionNvtxExtension(extension *e) {
  if (gpufl_is_child() || e == NULL || e->size < sizeof *e || e->module != EXTENSION_PAYLOAD ||
      e->compatible >> 8 != COMPATIBLE_PAYLOAD || e->num_segments == 0 || e->segments == NULL ||
      e->segments[0].num_slots == 0 || e->segments[0].slots == NULL) {
    return 0;
  }
  static const function handlers[] = {
      [SLOT_SCHEMA_REGISTER] = F(schema_register),
      [SLOT_MARK] = F(payload_mark),
      [SLOT_PUSH] = F(payload_push),
      [SLOT_POP] = F(payload_pop),
      [SLOT_START] = F(payload_start),
      [SLOT_END] = F(payload_end),
  };
  for (size_t i = 0; i < sizeof handlers / sizeof *handlers && i < e->segments[0].num_slots; i++) {
    if (handlers[i] != NULL) e->segments[0].slots[i] = (intptr_t)handlers[i];
  }
  return 1;
}
