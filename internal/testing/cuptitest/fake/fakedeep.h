/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of fakecupti.c that looks inside kernels: PC sampling, SASS metrics, and what is told of
 * contexts and modules. It insists on what NVIDIA's headers say: sizes of structs, the order of
 * calls, one engine at a time, one sampled context for each device.
 *
 * A kernel has PLACES instructions, at 0x10, 0x20, …; each launch adds i+1 samples to the i-th, of
 * the reason i+1, and executes each instruction once per warp. Or what a recording says is handed
 * out: fake_replay. */

enum { INVALID_CONTEXT = 3, INVALID_OPERATION = 7, OUT_OF_MEMORY = 8 };
enum { PLACES = 4, REASONS = 6, DEEP_CONTEXTS = 256, SASS_METRICS = 6, TEXT = 1024, SM_COUNT = 132 };
enum { KNOWN = 64, REASON_TEXT = 128 }; /* reasons or metrics, with those of a recording; and CUPTI's length of a name */

static const char *const reason_names[REASONS] = {
    "smsp__pcsamp_warps_issue_stalled_selected",        "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
    "smsp__pcsamp_warps_issue_stalled_barrier",         "smsp__pcsamp_warps_issue_stalled_wait",
    "smsp__pcsamp_warps_issue_stalled_math_pipe_throttle", "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued"};
static const char *const metric_names[SASS_METRICS] = {
    "smsp__sass_inst_executed", "smsp__sass_thread_inst_executed", "smsp__sass_sectors_mem_global",
    "smsp__sass_sectors_mem_global_ideal", "smsp__sass_inst_executed_op_branch", "smsp__sass_never"};
enum { FIRST_METRIC = 1000 }; /* ids are no indices */

typedef struct {
  uint32_t index;
  uint32_t samples;
} stall;

typedef struct {
  size_t size;
  uint64_t crc, pc;
  uint32_t function, pad;
  char *name;
  size_t count;
  stall *stalls;
  uint32_t correlation;
} pc_record;

typedef struct {
  size_t size, wanted;
  uint64_t total, dropped;
  size_t got, remaining;
  uint64_t range;
  pc_record *records;
  uint64_t non_user;
  uint8_t full;
} pc_data;

typedef struct {
  size_t size;
  void *priv, *ctx;
} pc_context;

typedef struct {
  uint32_t type;
  int status;
  union {
    uint64_t data[3];
    uint32_t number;
    size_t bytes;
    void *buffer;
    struct {
      size_t n;
      uint32_t *index;
    } reasons;
  } u;
} pc_attribute;

/* What a place in a kernel has: samples by reason, or values by metric. */
typedef struct {
  char name[TEXT];
  uint64_t crc, pc;
  uint32_t function, correlation;
  uint64_t values[KNOWN];
} place;

typedef struct {
  void *handle;
  int device;
  bool alive;
  bool enabled, start_stop, started, serialized;
  bool sampled; /* once, and so whenever somebody samples on its device */
  uint64_t selected; /* reasons, as bits */
  pc_data *rest;
  place *pc;
  size_t first_pc, num_pc, room_pc; /* those before the first have been handed out */
  uint64_t total, dropped, non_user;
  bool sass;
  place *counts;
  size_t num_counts, room_counts;
} deep_context;

static struct {
  deep_context all[DEEP_CONTEXTS];
  uint64_t last_crc;
  uint32_t profilers;
  uint32_t metrics[DEEP_CONTEXTS];   /* by device: how many are configured */
  int chosen[DEEP_CONTEXTS][KNOWN];
  int64_t refuse_pc, refuse_disable, refuse_start, counters_taken, read_concurrently, start_makes_unresponsive, refuse_profiler, refuse_sass, pc_full, pc_drop, pc_non_user, copies, layout, unsupported, no_reasons, broken;
  int watching; /* contexts that samples are taken of, or that count */
  int64_t mixed, pc_raced, sass_raced, sass_flushed, sass_with_activity, names_given, start_ms, data_ms, pc_remaining;
  char replay[4096];
} deep;

/* What the fake knows of itself, then what recordings have besides. */
typedef struct {
  uint32_t n;
  char names[KNOWN][REASON_TEXT];
} known;

static known reasons, metrics;

/* index_of returns the place of a name, which is added if it is not known; KNOWN if there is no
 * room. */
static uint32_t index_of(known *k, const char *text) {
  for (uint32_t i = 0; i < k->n; i++) {
    if (strcmp(k->names[i], text) == 0) return i;
  }
  if (k->n == KNOWN || strlen(text) >= REASON_TEXT) return KNOWN;
  strcpy(k->names[k->n], text);
  return k->n++;
}

static void forget_names(void) {
  reasons.n = metrics.n = 0;
  for (int i = 0; i < REASONS; i++) index_of(&reasons, reason_names[i]);
  for (int i = 0; i < SASS_METRICS; i++) index_of(&metrics, metric_names[i]);
}

/* hang is what hangs: 1 reading samples, 2 enabling patches, 3 disabling either; until it is set to
 * 0. */
static atomic_llong hang;
static void maybe_hang(int what) {
  while (atomic_load(&hang) == what) {
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
}

static fake_services services;

static void replay_from(const char *path);

static void deep_begin(void *cuda) {
  void (*get)(fake_services *) = NULL;
  if (cuda != NULL) *(void **)&get = dlsym(cuda, "fake_get_services");
  if (get != NULL) get(&services);
  const char *file = getenv("FAKE_CUPTI_REPLAY");
  replay_from(file);
}

/* finalize_deep is what cuptiFinalize forgets. The caller has the lock. */
static void finalize_deep(void) { memset(deep.metrics, 0, sizeof deep.metrics); }

/* What the real one does inside, and CUDA forbids while a stream is captured. */
static void does_something_unsafe(void) {
  if (services.unsafe != NULL) services.unsafe();
}

static deep_context *find(void *handle) {
  for (int i = 0; i < DEEP_CONTEXTS; i++) {
    if (deep.all[i].alive && deep.all[i].handle == handle) return &deep.all[i];
  }
  return NULL;
}

/* recount is after each change; the caller has the lock. */
static void recount(void) {
  deep.watching = 0;
  for (int i = 0; i < DEEP_CONTEXTS; i++) deep.watching += deep.all[i].started || deep.all[i].sass;
}

/* crc_of names an image as the real one does, and so do what it has recorded: FNV-1a over the size,
 * and some bytes at equal distances. */
static uint64_t crc_of(const void *bytes, size_t n) {
  const uint8_t *b = bytes;
  const uint32_t prime = 16777619u;
  uint32_t h = 2166136261u;
  for (int shift = 0; shift < 64; shift += 8) h = (h ^ (uint32_t)((uint64_t)n >> shift & 0xFF)) * prime;
  uint64_t samples = 0;
  for (uint64_t left = n > 0 ? n - 1 : 0; left > 0; left >>= 1) samples += 2;
  for (uint64_t i = 0; i < samples; i++) h = (h ^ b[i * n / samples]) * prime;
  return h;
}

static void on_context(int destroyed, void *context, int device) {
  if (!destroyed) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEEP_CONTEXTS; i++) {
      if (deep.all[i].alive) continue;
      deep.all[i] = (deep_context){.handle = context, .device = device, .alive = true};
      break;
    }
    pthread_mutex_unlock(&lock);
    tell_resource(1, context, NULL, NULL);
    return;
  }
  pthread_mutex_lock(&lock);
  deep_context *c = find(context);
  if (c != NULL) c->sampled = false; /* nothing of it runs any more */
  pthread_mutex_unlock(&lock);
  tell_resource(2, context, NULL, NULL);
  pthread_mutex_lock(&lock);
  c = find(context);
  if (c != NULL) {
    free(c->pc);
    free(c->counts);
    memset(c, 0, sizeof *c);
    recount();
  }
  pthread_mutex_unlock(&lock);
}

static void on_module(int unloaded, void *context, uint32_t id, const void *image, size_t size) {
  struct { uint32_t id; size_t size; const void *image; } m = {id, size, image};
  pthread_mutex_lock(&lock);
  if (!unloaded) deep.last_crc = crc_of(image, size);
  pthread_mutex_unlock(&lock);
  tell_resource(unloaded ? 7 : 6, context, NULL, &m);
}

static void on_stream_destroyed(void *stream) { tell_resource(4, NULL, stream, NULL); }

/* add_place adds one behind the n that there are, of which the first have been handed out. */
static place *add_place(place **all, size_t *first, size_t *n, size_t *room, const char *name, uint64_t crc, uint64_t pc, uint32_t correlation) {
  if (*n == *room && *first > *room / 2) {
    memmove(*all, *all + *first, (*n - *first) * sizeof **all);
    *n -= *first;
    *first = 0;
  }
  if (*n == *room) {
    size_t more = *room == 0 ? 64 : *room * 2;
    place *bigger = realloc(*all, more * sizeof **all);
    if (bigger == NULL) return NULL;
    *all = bigger;
    *room = more;
  }
  place *p = &(*all)[(*n)++];
  memset(p, 0, sizeof *p);
  strncpy(p->name, name, TEXT - 1);
  p->crc = crc;
  p->pc = pc;
  p->correlation = correlation;
  return p;
}

static place *pc_place(deep_context *x, const char *name, uint64_t crc, uint64_t pc, uint32_t correlation) {
  for (size_t i = x->num_pc; i > x->first_pc; i--) {
    place *p = &x->pc[i - 1];
    /* Launches that are distinguished may be many, and those of this one are the last. */
    if (p->correlation != correlation) break;
    if (p->pc == pc && p->crc == crc && strcmp(p->name, name) == 0) return p;
  }
  return add_place(&x->pc, &x->first_pc, &x->num_pc, &x->room_pc, name, crc, pc, correlation);
}

static place *count_place(deep_context *x, const char *name, uint64_t crc, uint64_t pc) {
  for (size_t i = 0; i < x->num_counts; i++) {
    place *p = &x->counts[i];
    if (p->pc == pc && p->crc == crc && strcmp(p->name, name) == 0) return p;
  }
  size_t first = 0;
  return add_place(&x->counts, &first, &x->num_counts, &x->room_counts, name, crc, pc, 0);
}

static void deep_kernel(uint32_t c, const fake_kernel *k) {
  for (int i = 0; i < DEEP_CONTEXTS && deep.watching > 0; i++) {
    deep_context *x = &deep.all[i];
    if (!x->alive || x->device != (int)k->device || deep.replay[0] != 0) continue;
    if (x->enabled && x->started) {
      for (uint32_t p = 0; p < PLACES; p++) {
        x->total += p + 1;
        if ((x->selected & 1u << (p + 1)) == 0) continue;
        place *at = pc_place(x, k->name, deep.last_crc, 16 * (p + 1), x->serialized ? c : 0);
        if (at != NULL) at->values[p + 1] += p + 1;
      }
      x->total += (uint64_t)(deep.pc_non_user + deep.pc_drop);
      x->non_user += (uint64_t)deep.pc_non_user;
      x->dropped += (uint64_t)deep.pc_drop;
    }
    if (x->sass) {
      uint64_t blocks = (uint64_t)k->grid[0] * k->grid[1] * k->grid[2], threads = (uint64_t)k->block[0] * k->block[1] * k->block[2];
      const uint64_t values[SASS_METRICS] = {blocks * ((threads + 31) / 32), blocks * threads, blocks * threads, blocks * threads / 8, blocks, 0};
      for (uint32_t p = 0; p < PLACES; p++) {
        place *at = count_place(x, k->name, deep.last_crc & 0xFFFFFFFFu, 16 * (p + 1));
        if (at == NULL) continue;
        /* Only the second instruction is about memory. */
        for (int m = 0; m < SASS_METRICS; m++) at->values[m] += m == 2 || m == 3 ? (p == 1 ? values[m] : 0) : values[m];
      }
    }
  }
}

/* ---- recordings ---- */

/* A recording is the text that GPUFLIGHT_DEEP_DUMP keeps. Its first line is "gpuflight-deep 1
 * ENGINE". Then come "name INDEX TEXT" (reasons or metrics) and "function INDEX TEXT". The last are
 * "row DEVICE CRC PC FUNCTION NAME CORRELATION VALUE" and "totals SAMPLES DROPPED NON_USER". */
static void replay(deep_context *x, bool pc) {
  FILE *f = fopen(deep.replay, "r");
  if (f == NULL) return;
  known *all = pc ? &reasons : &metrics;
  static char line[TEXT + 64], functions[256][TEXT];
  static uint32_t places[KNOWN]; /* of the recording's names */
  memset(functions, 0, sizeof functions);
  for (int i = 0; i < KNOWN; i++) places[i] = KNOWN;
  bool ours = false, known_format = false;
  while (fgets(line, sizeof line, f) != NULL) {
    unsigned index = 0, function = 0, name = 0, correlation = 0;
    int device = 0, at = 0;
    unsigned long long crc = 0, address = 0, value = 0, more[2] = {0};
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "gpuflight-deep 1 ", 17) == 0) {
      known_format = true;
      ours = strcmp(line + 17, pc ? "pc_sampling" : "sass_metrics") == 0;
    } else if (sscanf(line, "name %u %n", &index, &at) == 1 && index < KNOWN) {
      if (ours) places[index] = index_of(all, line + at);
    } else if (sscanf(line, "function %u %n", &index, &at) == 1 && index < 256) {
      strncpy(functions[index], line + at, TEXT - 1);
    } else if (ours && sscanf(line, "row %d %llu %llu %u %u %u %llu", &device, &crc, &address, &function, &name, &correlation, &value) == 7) {
      if (x == NULL || device != x->device || function >= 256 || name >= KNOWN || places[name] >= KNOWN) continue;
      place *p = pc ? pc_place(x, functions[function], crc, address, correlation) : count_place(x, functions[function], crc, address);
      if (p != NULL) p->values[places[name]] += value;
    } else if (ours && sscanf(line, "totals %llu %llu %llu", &value, &more[0], &more[1]) == 3 && x != NULL) {
      x->total += value;
      x->dropped += more[0];
      x->non_user += more[1];
    }
  }
  fclose(f);
  /* A test whose windows are all empty would not say why. */
  if (!known_format) {
    fprintf(stderr, "fake CUPTI: %s: no line \"gpuflight-deep 1 ENGINE\"\n", deep.replay);
    abort();
  }
}

/* replay_from has windows yield what the recording has, NULL for none. Its names are known from now
 * on. */
static void replay_from(const char *path) {
  memset(deep.replay, 0, sizeof deep.replay);
  strncpy(deep.replay, path != NULL ? path : "", sizeof deep.replay - 1);
  forget_names();
  if (path == NULL) return;
  replay(NULL, true);
  replay(NULL, false);
}

FAKE_API void fake_replay(const char *path) {
  pthread_mutex_lock(&lock);
  replay_from(path);
  pthread_mutex_unlock(&lock);
}

/* ---- shared ---- */

FAKE_API int cuptiGetDeviceId(void *context, uint32_t *device) {
  pthread_mutex_lock(&lock);
  deep_context *c = find(context);
  if (c != NULL) *device = (uint32_t)c->device;
  pthread_mutex_unlock(&lock);
  return c != NULL ? SUCCESS : INVALID_CONTEXT;
}

FAKE_API int cuptiGetCubinCrc(void *params) {
  struct { size_t size, bytes; const void *cubin; uint64_t crc; } *p = params;
  if (p->size != 32 || p->cubin == NULL || p->bytes == 0) return INVALID_PARAMETER;
  p->crc = crc_of(p->cubin, p->bytes);
  return SUCCESS;
}

/* ---- PC sampling ---- */

#define PC_CALL(params, wanted)                                              \
  pc_context *p = params;                                                    \
  if (p == NULL || p->size != (wanted) || p->priv != NULL) return INVALID_PARAMETER; \
  pthread_mutex_lock(&lock);                                                 \
  deep_context *c = find(p->ctx);                                            \
  int result = c == NULL ? INVALID_PARAMETER : SUCCESS
#define PC_DONE            \
  pthread_mutex_unlock(&lock); \
  return result

/* pc_locks_up counts what locks the real one up: CUPTI 13.0 waits here for a lock that a launching
 * thread holds, and that thread for one of CUPTI's. */
static void pc_locks_up(void) {
  if (atomic_load(&launching) == 0) return;
  pthread_mutex_lock(&lock);
  deep.pc_raced++;
  pthread_mutex_unlock(&lock);
}

FAKE_API int cuptiPCSamplingEnable(void *params) {
  does_something_unsafe();
  PC_CALL(params, 24);
  if (c != NULL) {
    if (deep.refuse_pc != 0) result = (int)deep.refuse_pc;
    else if (deep.profilers > 0 || c->enabled) result = INVALID_OPERATION;
    for (int i = 0; i < DEEP_CONTEXTS && result == SUCCESS; i++) {
      if (deep.all[i].alive && deep.all[i].enabled && deep.all[i].device == c->device) result = INVALID_OPERATION;
    }
    if (result == SUCCESS) {
      c->enabled = true;
      c->started = c->start_stop = c->serialized = false;
      c->selected = ~(uint64_t)0;
      c->rest = NULL;
    }
  }
  PC_DONE;
}

FAKE_API int cuptiPCSamplingGetNumStallReasons(void *params) {
  PC_CALL(params, 32);
  struct { size_t size; void *priv, *ctx; size_t *n; } *q = params;
  if (c != NULL) {
    if (!c->enabled) result = INVALID_OPERATION; else *q->n = deep.no_reasons ? 0 : reasons.n;
    unresponsive = unresponsive || (deep.no_reasons != 0 && deep.start_makes_unresponsive != 0);
  }
  PC_DONE;
}

FAKE_API int cuptiPCSamplingGetStallReasons(void *params) {
  PC_CALL(params, 48);
  struct { size_t size; void *priv, *ctx; size_t n; uint32_t *index; char **names; } *q = params;
  if (c != NULL && (!c->enabled || q->n > reasons.n)) result = INVALID_OPERATION;
  for (size_t i = 0; i < q->n && result == SUCCESS; i++) {
    q->index[i] = (uint32_t)i;
    strncpy(q->names[i], reasons.names[i], REASON_TEXT);
  }
  PC_DONE;
}

static bool fit(const pc_data *d) {
  if (d == NULL || d->size != sizeof *d || d->records == NULL || d->wanted == 0) return false;
  for (size_t i = 0; i < d->wanted; i++) {
    if (d->records[i].size != sizeof *d->records || d->records[i].stalls == NULL) return false;
  }
  return true;
}

FAKE_API int cuptiPCSamplingSetConfigurationAttribute(void *params) {
  PC_CALL(params, 40);
  struct { size_t size; void *priv, *ctx; size_t n; pc_attribute *all; } *q = params;
  if (c != NULL && (!c->enabled || c->started)) result = INVALID_OPERATION;
  for (size_t i = 0; i < q->n && result == SUCCESS; i++) {
    pc_attribute *a = &q->all[i];
    a->status = SUCCESS;
    switch (a->type) {
      case 1:
        if (a->u.number < 5 || a->u.number > 31) a->status = INVALID_OPERATION;
        break;
      case 2:
        c->selected = 0;
        for (size_t k = 0; k < a->u.reasons.n; k++) {
          if (a->u.reasons.index[k] >= reasons.n) a->status = INVALID_OPERATION; else c->selected |= (uint64_t)1 << a->u.reasons.index[k];
        }
        break;
      case 3:
      case 4:
        if (a->u.bytes == 0) a->status = INVALID_OPERATION;
        break;
      case 5:
        if (a->u.number != 1 && a->u.number != 2) a->status = INVALID_OPERATION;
        c->serialized = a->u.number == 2;
        break;
      case 6:
        c->start_stop = a->u.number != 0;
        break;
      case 7:
        if (a->u.number != 1) a->status = INVALID_OPERATION;
        break;
      case 8:
        c->rest = a->u.buffer;
        if (!fit(c->rest)) a->status = INVALID_OPERATION;
        break;
      default:
        a->status = INVALID_PARAMETER;
    }
    if (a->status != SUCCESS) result = INVALID_PARAMETER;
  }
  PC_DONE;
}

FAKE_API int cuptiPCSamplingStart(void *params) {
  does_something_unsafe();
  pc_locks_up();
  if (deep.start_ms > 0) {
    struct timespec pause = {deep.start_ms / 1000, deep.start_ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    pc_locks_up();
  }
  PC_CALL(params, 24);
  if (c != NULL) {
    if (!c->enabled || !c->start_stop || c->started || c->rest == NULL) {
      result = INVALID_OPERATION;
    } else if (deep.refuse_start != 0) {
      result = (int)deep.refuse_start;
      unresponsive = unresponsive || deep.start_makes_unresponsive != 0;
    } else {
      for (int i = 0; i < DEEP_CONTEXTS; i++) deep.mixed += deep.all[i].sampled && deep.all[i].device == c->device && &deep.all[i] != c;
      c->started = c->sampled = true;
      recount();
      if (deep.replay[0] != 0) replay(c, true);
    }
  }
  PC_DONE;
}

FAKE_API int cuptiPCSamplingStop(void *params) {
  does_something_unsafe();
  pc_locks_up();
  PC_CALL(params, 24);
  if (c != NULL) {
    if (!c->enabled || !c->started) result = INVALID_OPERATION;
    c->started = false;
    recount();
  }
  PC_DONE;
}

/* A name is one for all records, as of activity, or a new one for each. */
static char *give_name(const char *text) {
  if (!deep.copies) return (char *)name(text);
  deep.names_given++;
  return strdup(text);
}

/* hand_out fills a buffer with what the context has. */
static void hand_out(deep_context *c, pc_data *d) {
  size_t n = c->num_pc - c->first_pc < d->wanted ? c->num_pc - c->first_pc : d->wanted;
  for (size_t i = 0; i < n; i++) {
    const place *p = &c->pc[c->first_pc + i];
    pc_record *r = &d->records[i];
    r->crc = p->crc;
    r->pc = p->pc;
    r->function = p->function;
    r->name = give_name(p->name);
    r->correlation = p->correlation;
    r->count = 0;
    for (uint32_t k = 0; k < reasons.n; k++) {
      if (p->values[k] == 0 || (c->selected & (uint64_t)1 << k) == 0) continue;
      r->stalls[r->count++] = (stall){k, (uint32_t)p->values[k]};
    }
    if (deep.broken == 1) r->count = 1 << 20;
    if (deep.broken == 2) r->name = NULL;
    if (deep.broken == 3 && r->count > 0) r->stalls[0].index = 999;
  }
  c->first_pc += n;
  if (c->first_pc == c->num_pc) c->first_pc = c->num_pc = 0;
  d->got = deep.broken == 4 ? d->wanted + 5 : n;
  d->remaining = c->num_pc - c->first_pc;
  d->total = c->total;
  d->dropped = c->dropped;
  d->non_user = c->non_user;
  d->range++;
  c->total = c->dropped = c->non_user = 0;
}

FAKE_API int cuptiPCSamplingGetData(void *params) {
  maybe_hang(1);
  for (int i = 0; i < 2; i++) {
    if (atomic_load(&loading) > 0) {
      pthread_mutex_lock(&lock);
      deep.pc_raced++;
      pthread_mutex_unlock(&lock);
    }
    if (deep.data_ms == 0) break;
    struct timespec pause = {deep.data_ms / 1000, deep.data_ms % 1000 * 1000000};
    if (i == 0) nanosleep(&pause, NULL);
  }
  PC_CALL(params, 32);
  struct { size_t size; void *priv, *ctx; pc_data *data; } *q = params;
  if (c != NULL) {
    if (!c->enabled) {
      result = INVALID_OPERATION;
    } else if (!fit(q->data)) {
      result = INVALID_PARAMETER;
    } else if (deep.pc_full > 0) {
      deep.pc_full--;
      q->data->full = 1;
      q->data->got = 0;
      q->data->remaining = c->num_pc - c->first_pc;
      result = OUT_OF_MEMORY;
    } else {
      hand_out(c, q->data);
      if (deep.pc_remaining > 0) {
        deep.pc_remaining--;
        q->data->remaining++;
      }
    }
  }
  PC_DONE;
}

FAKE_API int cuptiPCSamplingDisable(void *params) {
  maybe_hang(3);
  does_something_unsafe();
  pc_locks_up();
  PC_CALL(params, 24);
  if (c != NULL) {
    if (!c->enabled) {
      result = INVALID_OPERATION;
    } else if (unresponsive || deep.refuse_disable != 0) {
      c->enabled = c->started = false;
      c->rest = NULL;
      result = unresponsive ? 999 : (int)deep.refuse_disable;
    } else {
      if (c->rest != NULL) hand_out(c, c->rest); /* and what has no room is gone */
      c->first_pc = c->num_pc = 0;
      c->enabled = c->started = false;
      c->rest = NULL;
      recount();
    }
  }
  PC_DONE;
}

/* ---- SASS metrics ---- */

typedef struct {
  uint64_t id;
  const char *name, *description;
} sass_metric;

/* Of the list nobody reads more than its length, which is told whoever has the counters. */
FAKE_API int cuptiProfilerGetCounterAvailability(void *params) {
  enum { BYTES = 8 };
  struct { size_t size; void *priv, *context; size_t bytes; uint8_t *list; } *p = params;
  if (p->size != 40) return INVALID_PARAMETER;
  pc_locks_up();
  pthread_mutex_lock(&lock);
  int result = deep.profilers == 0 ? INVALID_OPERATION : SUCCESS;
  if (result == SUCCESS && p->list == NULL) {
    p->bytes = BYTES;
  } else if (result == SUCCESS && p->bytes < BYTES) {
    result = INVALID_PARAMETER;
  } else if (result == SUCCESS) {
    if (deep.counters_taken != 0) result = (int)deep.counters_taken;
    else memset(p->list, 1, BYTES);
    for (int i = 0; i < DEEP_CONTEXTS; i++) deep.read_concurrently += deep.all[i].alive && deep.all[i].started;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiProfilerInitialize(void *params) {
  size_t *size = params;
  if (*size != 16) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  int result = (int)deep.refuse_profiler;
  if (result == SUCCESS) deep.profilers++;
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiProfilerDeInitialize(void *params) {
  size_t *size = params;
  if (*size != 16) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  int result = deep.profilers > 0 ? SUCCESS : INVALID_OPERATION;
  if (deep.profilers > 0) deep.profilers--;
  pthread_mutex_unlock(&lock);
  return result;
}

/* unsupported is the place of the first setting that rules a device out, from 1. */
FAKE_API int cuptiProfilerDeviceSupported(void *params) {
  struct { size_t size; void *priv; int device, supported, why[6], api; } *p = params;
  if (p->size != 52 || p->api != 2) return INVALID_PARAMETER;
  for (int i = 0; i < 6; i++) p->why[i] = deep.unsupported == i + 1 ? 1 : 3;
  p->supported = deep.unsupported != 0 ? 1 : 3;
  return SUCCESS;
}

FAKE_API int cuptiDeviceGetChipName(void *params) {
  struct { size_t size; void *priv; size_t device; const char *chip; } *p = params;
  if (p->size != 32) return INVALID_PARAMETER;
  p->chip = "GH100";
  return SUCCESS;
}

FAKE_API int cuptiSassMetricsGetProperties(void *params) {
  struct { size_t size; void *priv; const char *chip, *name; sass_metric metric; } *p = params;
  if (p->size != 56 || strcmp(p->chip, "GH100") != 0) return INVALID_PARAMETER;
  int result = INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < metrics.n && result != SUCCESS; i++) {
    if (strcmp(metrics.names[i], p->name) != 0) continue;
    p->metric = (sass_metric){FIRST_METRIC + i, metrics.names[i], "counted"};
    result = SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* deep_flushes counts flushes beside kernels that are patched and launched, with no activity to be
 * flushed. The caller has the lock. */
static void deep_flushes(void) {
  for (int i = 0; i < DEEP_CONTEXTS; i++) {
    if (deep.all[i].sass && !s.enabled[CONCURRENT_KERNEL]) deep.sass_flushed++;
  }
}

static bool raced(void) {
  if (atomic_load(&launching) == 0 && atomic_load(&loading) == 0) return false;
  pthread_mutex_lock(&lock);
  deep.sass_raced++;
  pthread_mutex_unlock(&lock);
  return true;
}

FAKE_API int cuptiSassMetricsSetConfig(void *params) {
  struct { size_t size; void *priv; size_t n; struct { uint64_t id; uint8_t granularity; } *all; uint32_t device; } *p = params;
  if (p->size != 36 || p->n == 0 || p->n > KNOWN || p->device >= DEEP_CONTEXTS) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  bool stranger = services.has_context != NULL && !services.has_context();
  int result = deep.refuse_sass != 0 ? (int)deep.refuse_sass : stranger ? INVALID_CONTEXT : deep.profilers == 0 || deep.metrics[p->device] != 0 ? INVALID_OPERATION : SUCCESS;
  for (size_t i = 0; i < p->n && result == SUCCESS; i++) {
    if (p->all[i].granularity != 0 || p->all[i].id < FIRST_METRIC || p->all[i].id >= FIRST_METRIC + metrics.n) result = INVALID_PARAMETER;
    else deep.chosen[p->device][i] = (int)(p->all[i].id - FIRST_METRIC);
  }
  if (result == SUCCESS) deep.metrics[p->device] = (uint32_t)p->n;
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiSassMetricsEnable(void *params) {
  maybe_hang(2);
  raced();
  does_something_unsafe();
  struct { size_t size; void *priv, *ctx; uint8_t lazy; } *p = params;
  if (p->size != 25) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  deep_context *c = find(p->ctx);
  int result = deep.refuse_sass != 0 ? (int)deep.refuse_sass : c == NULL ? INVALID_CONTEXT : c->sass || deep.metrics[c->device] == 0 ? INVALID_OPERATION : SUCCESS;
  for (int i = 0; i < DEEP_CONTEXTS && result == SUCCESS; i++) {
    if (deep.all[i].alive && deep.all[i].enabled) result = INVALID_OPERATION;
  }
  if (result == SUCCESS) {
    if (s.enabled[CONCURRENT_KERNEL]) deep.sass_with_activity++;
    c->sass = true;
    recount();
    c->num_counts = 0;
    if (deep.replay[0] != 0) replay(c, false);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static size_t instances(const deep_context *c) { return deep.layout ? 1 : deep.metrics[c->device]; }

FAKE_API int cuptiSassMetricsDisable(void *params) {
  maybe_hang(3);
  raced();
  does_something_unsafe();
  struct { size_t size; void *priv, *ctx; size_t dropped; } *p = params;
  if (p->size != 32) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  deep_context *c = find(p->ctx);
  int result = c == NULL ? INVALID_CONTEXT : !c->sass ? INVALID_OPERATION : SUCCESS;
  if (result == SUCCESS) {
    p->dropped = c->num_counts * instances(c);
    c->num_counts = 0;
    c->sass = false;
    recount();
  }
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiSassMetricsGetDataProperties(void *params) {
  struct { size_t size; void *priv, *ctx; size_t records, instances; } *p = params;
  if (p->size != 40) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  deep_context *c = find(p->ctx);
  int result = c == NULL ? INVALID_CONTEXT : !c->sass ? INVALID_OPERATION : SUCCESS;
  if (result == SUCCESS) {
    p->records = c->num_counts;
    p->instances = instances(c);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

FAKE_API int cuptiSassMetricsFlushData(void *params) {
  raced();
  struct {
    size_t size;
    void *priv, *ctx;
    size_t records, instances;
    struct {
      size_t size;
      void *priv;
      uint32_t crc, function;
      const char *name;
      uint32_t pc;
      struct { uint64_t id, value; } *values;
    } *data;
  } *p = params;
  if (p->size != 40 || p->data == NULL) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  deep_context *c = find(p->ctx);
  int result = c == NULL ? INVALID_CONTEXT : !c->sass ? INVALID_OPERATION : SUCCESS;
  if (result == SUCCESS && (p->records > c->num_counts || p->instances != instances(c))) result = INVALID_PARAMETER;
  for (size_t i = 0; i < p->records && result == SUCCESS; i++) {
    const place *at = &c->counts[i];
    p->data[i].crc = (uint32_t)at->crc;
    p->data[i].function = at->function;
    p->data[i].pc = (uint32_t)at->pc;
    p->data[i].name = strdup(at->name);
    for (uint32_t m = 0; m < deep.metrics[c->device]; m++) {
      int chosen = deep.chosen[c->device][m];
      p->data[i].values[m].id = (uint64_t)(FIRST_METRIC + chosen);
      p->data[i].values[m].value = at->values[chosen];
    }
    if (deep.broken == 2) {
      free((void *)p->data[i].name);
      p->data[i].name = NULL;
    }
    if (deep.broken == 3) p->data[i].values[0].id = 7;
  }
  if (result == SUCCESS) {
    memmove(c->counts, c->counts + p->records, (c->num_counts - p->records) * sizeof *c->counts);
    c->num_counts -= p->records;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* The caller has the lock. */
static int64_t deep_control(const char *what, int64_t value) {
  struct { const char *name; int64_t *at; } all[] = {
      {"refuse_pc", &deep.refuse_pc},     {"refuse_profiler", &deep.refuse_profiler},
      {"refuse_disable", &deep.refuse_disable}, {"refuse_start", &deep.refuse_start}, {"start_makes_unresponsive", &deep.start_makes_unresponsive},
      {"counters_taken", &deep.counters_taken}, {"read_concurrently", &deep.read_concurrently},
      {"refuse_sass", &deep.refuse_sass}, {"pc_full", &deep.pc_full},
      {"pc_drop", &deep.pc_drop},         {"pc_non_user", &deep.pc_non_user},
      {"names_copied", &deep.copies},     {"sass_layout", &deep.layout},
      {"unsupported", &deep.unsupported}, {"pc_raced", &deep.pc_raced},
      {"sass_raced", &deep.sass_raced},   {"sass_with_activity", &deep.sass_with_activity},
      {"no_reasons", &deep.no_reasons},   {"broken", &deep.broken},
      {"names_given", &deep.names_given}, {"start_ms", &deep.start_ms}, {"data_ms", &deep.data_ms}, {"pc_remaining", &deep.pc_remaining},
      {"sass_flushed", &deep.sass_flushed}, {"mixed", &deep.mixed}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(what, all[i].name) != 0) continue;
    int64_t old = *all[i].at;
    *all[i].at = value;
    return old;
  }
  if (strcmp(what, "forget_sass") == 0) finalize_deep();
  if (strcmp(what, "hang") == 0) return atomic_exchange(&hang, value);
  if (strcmp(what, "armed") == 0) {
    int64_t n = deep.profilers;
    for (int i = 0; i < DEEP_CONTEXTS; i++) n += deep.all[i].enabled + deep.all[i].sass;
    return n;
  }
  return -1;
}
