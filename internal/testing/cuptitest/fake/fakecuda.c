// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a device. Memory is the host's, kernels do nothing, a function's handle is
// its name. What each call needs to be is told by cuda.h; what is not here is not needed by a test.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };

static atomic_bool initialised;
static fake_hooks hooks;
static atomic_bool hooked;

FAKE_API void fake_hook(const fake_hooks *h) {
  hooks = *h;
  atomic_store(&hooked, true);
}

static int setting(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value != NULL && *value != 0 ? atoi(value) : otherwise;
}

static int devices(void) { return setting("FAKE_CUDA_DEVICES", 1); }

// FAKE_CUDA_LAZY=1 makes the driver insist on cuInit, as the real one does, and 2 not even believe
// in that. Without it tests need not call it.
static int ready(void) {
  int lazy = setting("FAKE_CUDA_LAZY", 0);
  return lazy == 0 || (lazy == 1 && atomic_load(&initialised));
}

#define ENTER(cbid, name) \
  uint32_t correlation = atomic_load(&hooked) ? hooks.enter(cbid, name) : 0; \
  (void)correlation
#define LEAVE(cbid, name) \
  if (atomic_load(&hooked)) hooks.leave(cbid, name, correlation)
#define TELL(what, ...) \
  if (atomic_load(&hooked)) hooks.what(correlation, __VA_ARGS__)

static void inject(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH");
  if (path == NULL || *path == 0) return;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "fake libcuda: %s\n", dlerror());
    return;
  }
  int (*entry)(void);
  *(void **)&entry = dlsym(library, "InitializeInjection");
  if (entry != NULL) entry();
}

// The library is called in the middle of cuInit; who asks for devices then waits until it is over.
static pthread_rwlock_t initialising = PTHREAD_RWLOCK_INITIALIZER;

FAKE_API int cuInit(unsigned flags) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)flags;
  if (devices() == 0) return NO_DEVICE;
  pthread_rwlock_wrlock(&initialising);
  pthread_once(&once, inject);
  atomic_store(&initialised, true);
  pthread_rwlock_unlock(&initialising);
  return SUCCESS;
}

FAKE_API int cuDriverGetVersion(int *version) {
  ENTER(2, "cuDriverGetVersion");
  *version = setting("FAKE_CUDA_DRIVER", 13000);
  LEAVE(2, "cuDriverGetVersion");
  return SUCCESS;
}

FAKE_API int cuDeviceGetCount(int *count) {
  ENTER(4, "cuDeviceGetCount");
  pthread_rwlock_rdlock(&initialising);
  pthread_rwlock_unlock(&initialising);
  int result = ready() ? SUCCESS : NOT_INITIALIZED;
  if (result == SUCCESS && devices() == 0) result = NO_DEVICE;
  *count = result == SUCCESS ? devices() : 0;
  LEAVE(4, "cuDeviceGetCount");
  return result;
}

FAKE_API int cuDeviceGet(int *device, int ordinal) {
  if (!ready()) return NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= devices()) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

FAKE_API int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, (size_t)size, "Fake GPU %d", device);
  return SUCCESS;
}

FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 16:
      *value = 132;
      return SUCCESS;
    case 75:
      *value = 9;
      return SUCCESS;
    case 76:
      *value = 0;
      return SUCCESS;
    default:
      return INVALID_VALUE;
  }
}

// Each process has GPUs of its own, unless FAKE_CUDA_BOARD says which.
static int uuid(uint8_t out[16], int device) {
  unsigned board = (unsigned)setting("FAKE_CUDA_BOARD", (int)getpid());
  for (int i = 0; i < 16; i++) out[i] = (uint8_t)(0x10 + i);
  for (int i = 0; i < 4; i++) out[11 + i] = (uint8_t)(board >> (24 - 8 * i));
  out[15] = (uint8_t)device;
  return SUCCESS;
}
FAKE_API int cuDeviceGetUuid(uint8_t out[16], int device) { return uuid(out, device); }
FAKE_API int cuDeviceGetUuid_v2(uint8_t out[16], int device) {
  uuid(out, device);
  if (setting("FAKE_CUDA_MIG", 0)) out[0] = 0xAA;
  return SUCCESS;
}

FAKE_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)1 << 34;
  return SUCCESS;
}

FAKE_API int cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes) {
  *free_bytes = *bytes = (size_t)1 << 34;
  return SUCCESS;
}

// ---- contexts, modules, streams ----

#define LEAVE_WITH(cbid, name, parameters, result) \
  if (atomic_load(&hooked)) hooks.leave_with(cbid, name, correlation, parameters, result)

enum { MAX_CONTEXTS = 256, MAX_MODULES = 1 << 16 };

typedef struct {
  int device;
  bool alive, primary;
  uint32_t captures; // streams of it that are being captured
} context_state;

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

// A child has the locks as they were when it was forked, and not the threads that held them.
static void in_child(void) {
  pthread_rwlock_init(&initialising, NULL);
  pthread_mutex_init(&contexts_lock, NULL);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, in_child); }

static context_state context_states[MAX_CONTEXTS];
static int retained[MAX_CONTEXTS]; // of primary contexts, by device
static __thread void *current;

static void *create_context(int device, bool primary) {
  void *made = NULL;
  pthread_mutex_lock(&contexts_lock);
  for (int i = 0; i < MAX_CONTEXTS && made == NULL; i++) {
    if (context_states[i].alive) continue;
    context_states[i] = (context_state){.device = device, .alive = true, .primary = primary};
    made = &context_states[i];
  }
  pthread_mutex_unlock(&contexts_lock);
  if (made != NULL && atomic_load(&hooked)) hooks.context(0, made, device);
  return made;
}

static bool is_context(const void *c) {
  for (int i = 0; i < MAX_CONTEXTS; i++) {
    if (c == &context_states[i]) return context_states[i].alive;
  }
  return false;
}

static int destroy_context(void *c) {
  if (!is_context(c)) return 201; // CUDA_ERROR_INVALID_CONTEXT
  context_state *s = c;
  if (atomic_load(&hooked)) hooks.context(1, c, s->device);
  pthread_mutex_lock(&contexts_lock);
  s->alive = false;
  pthread_mutex_unlock(&contexts_lock);
  if (current == c) current = NULL;
  return SUCCESS;
}

FAKE_API int cuCtxCreate_v2(void **out, unsigned flags, int device) {
  (void)flags;
  if (!ready()) return NOT_INITIALIZED;
  *out = current = create_context(device, false);
  return *out != NULL ? SUCCESS : 2;
}
FAKE_API int cuCtxDestroy_v2(void *c) { return destroy_context(c); }

static void *primary_of(int device) {
  void *found = NULL;
  pthread_mutex_lock(&contexts_lock);
  for (int i = 0; i < MAX_CONTEXTS && found == NULL; i++) {
    if (context_states[i].alive && context_states[i].primary && context_states[i].device == device) found = &context_states[i];
  }
  pthread_mutex_unlock(&contexts_lock);
  return found;
}
FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = primary_of(device) != NULL;
  return ready() ? SUCCESS : NOT_INITIALIZED;
}
FAKE_API int cuGetErrorName(int error, const char **name) {
  *name = error == 0 ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN";
  return 0;
}

FAKE_API int cuDevicePrimaryCtxRetain(void **out, int device) {
  if (!ready()) return NOT_INITIALIZED;
  void *c = primary_of(device);
  if (c == NULL) c = create_context(device, true);
  *out = c;
  if (c == NULL) return 2;
  pthread_mutex_lock(&contexts_lock);
  retained[device]++;
  pthread_mutex_unlock(&contexts_lock);
  return SUCCESS;
}
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device) {
  pthread_mutex_lock(&contexts_lock);
  int left = --retained[device];
  pthread_mutex_unlock(&contexts_lock);
  void *c = primary_of(device);
  return left == 0 && c != NULL ? destroy_context(c) : SUCCESS;
}
FAKE_API int cuCtxSetCurrent(void *c) { current = c; return SUCCESS; }
static __thread void *stack[16];
static __thread int stacked;
FAKE_API int cuCtxPushCurrent_v2(void *c) {
  if (!is_context(c)) return 201;
  if (stacked == 16) return INVALID_VALUE;
  stack[stacked++] = current;
  current = c;
  return SUCCESS;
}
FAKE_API int cuCtxPopCurrent_v2(void **c) {
  *c = current;
  if (stacked == 0) return 201;
  current = stack[--stacked];
  return SUCCESS;
}
static char context; // of those who need none
FAKE_API int cuCtxGetCurrent(void **out) { *out = current != NULL ? current : &context; return SUCCESS; }

// A module's image must say how long it is: the fake cannot read one. It is given by
// fake_module_load, or begins with the eight bytes of fake_magic and its length in the next eight.
static const char fake_magic[8] = "fakecubn";
static atomic_uint module_ids;
static struct {
  void *context;
  void *image;
  size_t size;
} modules[MAX_MODULES];

static uint32_t load_module(const void *image, size_t size) {
  uint32_t id = (atomic_fetch_add(&module_ids, 1) + 1) % MAX_MODULES;
  void *copy = malloc(size);
  if (copy == NULL) return 0;
  memcpy(copy, image, size);
  modules[id].context = current;
  modules[id].image = copy;
  modules[id].size = size;
  if (atomic_load(&hooked)) hooks.module(0, current, id, copy, size);
  return id;
}

// fake_module_load answers with the module's number, 0 for none.
FAKE_API uint32_t fake_module_load(const void *image, size_t size) {
  ENTER(19, "cuModuleLoadData");
  uint32_t id = load_module(image, size);
  LEAVE(19, "cuModuleLoadData");
  return id;
}

FAKE_API int fake_module_unload(uint32_t id) {
  ENTER(22, "cuModuleUnload");
  int result = id < MAX_MODULES && modules[id].image != NULL ? SUCCESS : INVALID_VALUE;
  if (result == SUCCESS) {
    if (atomic_load(&hooked)) hooks.module(1, modules[id].context, id, modules[id].image, modules[id].size);
    free(modules[id].image);
    modules[id].image = NULL;
  }
  LEAVE(22, "cuModuleUnload");
  return result;
}

// No file is there.
FAKE_API int cuModuleLoad(void **out, const char *path) {
  (void)out; (void)path;
  ENTER(18, "cuModuleLoad");
  LEAVE(18, "cuModuleLoad");
  return 301;
}

FAKE_API int cuModuleLoadData(void **out, const void *image) {
  *out = &context;
  if (image == NULL) return INVALID_VALUE;
  if (memcmp(image, fake_magic, sizeof fake_magic) == 0) {
    uint64_t size = 0;
    memcpy(&size, (const char *)image + 8, sizeof size);
    ENTER(19, "cuModuleLoadData");
    *out = (void *)(uintptr_t)load_module(image, size);
    LEAVE(19, "cuModuleLoadData");
  }
  return SUCCESS;
}
FAKE_API int cuModuleLoadDataEx(void **out, const void *image, unsigned n, int *keys, void **values) {
  (void)n; (void)keys; (void)values;
  return cuModuleLoadData(out, image);
}
FAKE_API int cuModuleUnload(void *module) {
  return module == &context ? SUCCESS : fake_module_unload((uint32_t)(uintptr_t)module);
}

// ---- captures and events ----

// Streams that are being captured, whatever their context.
enum { MAX_CAPTURES = 64 };
static struct {
  void *streams[MAX_CAPTURES];
  bool broken[MAX_CAPTURES];
  int n;
  int64_t ever_broken;
} capturing;
static __thread int capture_mode; // 0 global, 2 relaxed

static void break_captures(void) {
  pthread_mutex_lock(&contexts_lock);
  for (int i = 0; i < capturing.n; i++) {
    if (!capturing.broken[i]) capturing.ever_broken++;
    capturing.broken[i] = true;
  }
  pthread_mutex_unlock(&contexts_lock);
}

static void unsafe(void) {
  if (capture_mode != 2) break_captures();
}

static int has_context(void) { return current != NULL; }
FAKE_API void fake_get_services(fake_services *out) { *out = (fake_services){unsafe, has_context}; }

// fake_captures_broken is how many captures were ended by something that did not belong to them.
FAKE_API int64_t fake_captures_broken(void) { return capturing.ever_broken; }

FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode) {
  int old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return SUCCESS;
}

FAKE_API int cuStreamBeginCapture_v2(void *stream, int mode) {
  ENTER(539, "cuStreamBeginCapture_v2");
  const struct { void *stream; int mode; } parameters = {stream, mode};
  int result = SUCCESS;
  pthread_mutex_lock(&contexts_lock);
  if (capturing.n == MAX_CAPTURES) {
    result = INVALID_VALUE;
  } else {
    capturing.broken[capturing.n] = false;
    capturing.streams[capturing.n++] = stream;
  }
  pthread_mutex_unlock(&contexts_lock);
  LEAVE_WITH(539, "cuStreamBeginCapture_v2", &parameters, &result);
  return result;
}

static int end_capture(void *stream) {
  int result = INVALID_VALUE;
  pthread_mutex_lock(&contexts_lock);
  for (int i = 0; i < capturing.n; i++) {
    if (capturing.streams[i] != stream) continue;
    result = capturing.broken[i] ? 901 : SUCCESS; // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    capturing.n--;
    capturing.streams[i] = capturing.streams[capturing.n];
    capturing.broken[i] = capturing.broken[capturing.n];
    break;
  }
  pthread_mutex_unlock(&contexts_lock);
  return result;
}

FAKE_API int cuStreamEndCapture(void *stream, void **graph) {
  ENTER(497, "cuStreamEndCapture");
  const struct { void *stream; void **graph; } parameters = {stream, graph};
  int result = end_capture(stream);
  *graph = (void *)(uintptr_t)1;
  LEAVE_WITH(497, "cuStreamEndCapture", &parameters, &result);
  return result;
}

FAKE_API int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = calloc(1, 1); return SUCCESS; }
FAKE_API int cuEventDestroy_v2(void *event) { free(event); return SUCCESS; }
static atomic_int busy_queries;
// fake_busy makes so many of the next questions find the device at work; with -1 it cannot even be
// asked.
FAKE_API void fake_busy(int queries) { atomic_store(&busy_queries, queries); }
FAKE_API int cuEventQuery(void *event) {
  (void)event;
  int left = atomic_load(&busy_queries);
  while (left > 0 && !atomic_compare_exchange_weak(&busy_queries, &left, left - 1)) {
  }
  return left > 0 ? 600 : SUCCESS; // CUDA_ERROR_NOT_READY
}
FAKE_API int cuCtxRecordEvent(void *c, void *event) {
  if (!is_context(c) || event == NULL) return 201;
  if (atomic_load(&busy_queries) < 0) return INVALID_VALUE;
  if (capturing.n > 0) {
    break_captures(); // whatever the thread's mode
    return 900;       // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
  }
  return SUCCESS;
}

// A function's handle is a copy of its name. Names are few and stay.
FAKE_API int cuModuleGetFunction(void **out, void *module, const char *name) {
  (void)module;
  *out = strdup(name);
  return SUCCESS;
}

static atomic_uint streams = 12; // the numbers that CUPTI shows begin at some such value
static uint32_t stream_id(void *stream) { return stream == NULL ? 7 : (uint32_t)(uintptr_t)stream; }
FAKE_API int cuStreamCreate(void **out, unsigned flags) { (void)flags; *out = (void *)(uintptr_t)(atomic_fetch_add(&streams, 1) + 1); return SUCCESS; }
FAKE_API int cuStreamDestroy_v2(void *stream) {
  if (atomic_load(&hooked)) hooks.stream_destroyed(stream);
  end_capture(stream);
  return SUCCESS;
}
FAKE_API int cuStreamSynchronize(void *stream) {
  ENTER(126, "cuStreamSynchronize");
  TELL(wait, 3, stream_id(stream));
  LEAVE(126, "cuStreamSynchronize");
  return SUCCESS;
}
// FAKE_CUDA_SYNCHRONIZE_US is how long it takes, in microseconds. A program that launches and waits
// then does so some thousand times a second, as on a device.
FAKE_API int cuCtxSynchronize(void) {
  ENTER(17, "cuCtxSynchronize");
  int us = setting("FAKE_CUDA_SYNCHRONIZE_US", 0);
  struct timespec pause = {us / 1000000, us % 1000000 * 1000L};
  if (us > 0) nanosleep(&pause, NULL);
  TELL(wait, 4, 0);
  LEAVE(17, "cuCtxSynchronize");
  return SUCCESS;
}

// ---- work ----

// The kernel that the thread launches, for callbacks.
static __thread const char *launching;
FAKE_API const char *fake_symbol(void) { return launching; }

FAKE_API int fake_launch(const fake_kernel *kernel) {
  launching = kernel->name;
  ENTER(307, "cuLaunchKernel");
  TELL(kernel, kernel);
  LEAVE(307, "cuLaunchKernel");
  launching = NULL;
  return SUCCESS;
}

FAKE_API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void *stream, void **parameters, void **extra) {
  (void)parameters;
  (void)extra;
  if (function == NULL || gx == 0 || gy == 0 || gz == 0 || bx == 0 || by == 0 || bz == 0 || bx * by * bz > 1024) return INVALID_VALUE;
  fake_kernel kernel = {.name = function, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared, .registers = 32, .stream = stream_id(stream)};
  return fake_launch(&kernel);
}

FAKE_API int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
  ENTER(243, "cuMemAlloc_v2");
  void *memory = calloc(1, bytes);
  *out = (uint64_t)(uintptr_t)memory;
  TELL(memory, 0, *out, bytes);
  LEAVE(243, "cuMemAlloc_v2");
  return memory != NULL ? SUCCESS : 2;
}

FAKE_API int cuMemFree_v2(uint64_t memory) {
  ENTER(245, "cuMemFree_v2");
  free((void *)(uintptr_t)memory);
  TELL(memory, 1, memory, 0);
  LEAVE(245, "cuMemFree_v2");
  return SUCCESS;
}

#define COPY(symbol, cbid, kind, async, from, to, ...)                 \
  FAKE_API int symbol(to, from, size_t bytes __VA_ARGS__) {            \
    ENTER(cbid, #symbol);                                              \
    memcpy((void *)(uintptr_t)target, (const void *)(uintptr_t)source, bytes); \
    TELL(copy, kind, bytes, STREAM, async);                            \
    int result = SUCCESS;                                              \
    const struct { uint64_t target, source; size_t bytes; } parameters = {(uint64_t)(uintptr_t)target, (uint64_t)(uintptr_t)source, bytes}; \
    LEAVE_WITH(cbid, #symbol, &parameters, &result);                   \
    return result;                                                     \
  }
#define COMMA ,
#define STREAM stream_id(NULL)
COPY(cuMemcpyHtoD_v2, 276, 1, 0, const void *source, uint64_t target, )
COPY(cuMemcpyDtoH_v2, 278, 2, 0, uint64_t source, void *target, )
COPY(cuMemcpyDtoD_v2, 280, 8, 0, uint64_t source, uint64_t target, )
#undef STREAM
#define STREAM stream_id(stream)
COPY(cuMemcpyHtoDAsync_v2, 277, 1, 1, const void *source, uint64_t target, COMMA void *stream)
COPY(cuMemcpyDtoHAsync_v2, 279, 2, 1, uint64_t source, void *target, COMMA void *stream)
COPY(cuMemcpyDtoDAsync_v2, 281, 8, 1, uint64_t source, uint64_t target, COMMA void *stream)

FAKE_API int cuMemsetD8_v2(uint64_t target, unsigned char value, size_t bytes) {
  ENTER(249, "cuMemsetD8_v2");
  memset((void *)(uintptr_t)target, value, bytes);
  TELL(set, bytes, stream_id(NULL));
  int result = SUCCESS;
  const struct { uint64_t target; unsigned char value; size_t bytes; } parameters = {target, value, bytes};
  LEAVE_WITH(249, "cuMemsetD8_v2", &parameters, &result);
  return result;
}

// A graph's handle is the number of its kernels.
FAKE_API int cuGraphLaunch(void *graph, void *stream) {
  ENTER(514, "cuGraphLaunch");
  for (uint32_t i = 0; i < (uint32_t)(uintptr_t)graph; i++) {
    fake_kernel node = {.name = "graph_node", .grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream_id(stream), .graph_node = i + 1, .graph = 1};
    TELL(kernel, &node);
  }
  TELL(graph, 1, stream_id(stream));
  LEAVE(514, "cuGraphLaunch");
  return SUCCESS;
}

typedef struct {
  const char *name;
  uint64_t launches;
} job;

static void *run(void *argument) {
  const job *j = argument;
  for (uint64_t i = 0; i < j->launches; i++) {
    fake_kernel kernel = {.name = j->name, .grid = {(uint32_t)(i % 1000) + 1, 2, 3}, .block = {128, 1, 1}, .shared = 1024, .registers = 24, .stream = 7};
    fake_launch(&kernel);
  }
  return NULL;
}

// fake_run launches from some threads of its own and waits for them.
FAKE_API int fake_run(int threads, uint64_t launches, const char *name) {
  job j = {name, launches};
  pthread_t *ids = calloc((size_t)threads, sizeof *ids);
  int started = 0;
  while (started < threads && pthread_create(&ids[started], NULL, run, &j) == 0) started++;
  for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
  free(ids);
  return started == threads ? 0 : -1;
}
