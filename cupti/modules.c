// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpufl_deep_internal.h"

// ---- state ----

// CUPTI lends the image of a module during the callback only, and windows need it later, so it is
// copied immediately. The driver has just read the image, and a copy costs a fraction of that.
// Images are in memory and not in a file, since the process may be unable to write files. Their sum
// is bounded. To make room, images of unloaded modules are evicted, oldest first.
typedef struct {
  uint32_t id;
  uint32_t loaded; // Modules that have it now.
  uint32_t loads;  // Loads since it was stored.
  uint32_t pins;   // Readers without the lock.
  bool has_crc;
  uint64_t crc;
  size_t size;
  uint8_t *bytes;
} image;

// The image of a module, by CUPTI's number of the module.
typedef struct {
  uint32_t module, image;
} loaded_module;

enum { MAX_IMAGES = 1 << 15, MAX_MODULES = 1 << 17 };
enum { MAX_CAPTURES = 256 };

// The state of this file. No thread calls CUPTI while it holds one of the locks, since CUPTI holds
// locks of its own in its callbacks. No thread holds two of them.
static struct {
  struct {
    pthread_mutex_t lock; // Protects this struct.
    bool open;
    uint64_t limit, bytes;
    image *images; // Oldest first.
    uint32_t num_images, room_images, last_id;
    loaded_module *modules;
    uint32_t num_modules, room_modules;
    uint64_t refused, refused_bytes, evicted;
  } store;

  struct {
    pthread_mutex_t lock; // Protects this struct.
    gpufl_context all[GPUFL_MAX_CONTEXTS];
    int n;
    uint64_t more; // Contexts beyond the capacity.
  } contexts;

  // The streams that are being captured. Streams are not queried, since a query of the wrong stream
  // invalidates its capture.
  struct {
    pthread_mutex_t lock; // Protects this struct.
    void *streams[MAX_CAPTURES];
    uint32_t n;
  } captures;

  // Since when contexts, modules and captures have been reported, on the clock of gpufl_monotonic.
  // 0 if they are not.
  _Atomic int64_t reported_since;
} core = {
    .store = {.lock = PTHREAD_MUTEX_INITIALIZER},
    .contexts = {.lock = PTHREAD_MUTEX_INITIALIZER},
    .captures = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

// ---- images ----

// grow makes room for one more element after n. It returns false without memory, or at most
// elements.
static bool grow(void **elements, uint32_t n, uint32_t *room, size_t size, uint32_t most) {
  if (n < *room) return true;
  if (n >= most) return false;
  uint32_t more = *room == 0 ? 64 : *room * 2;
  void *bigger = realloc(*elements, more * size);
  if (bigger == NULL) return false;
  *elements = bigger;
  *room = more;
  return true;
}

static void drop_image(uint32_t i) {
  core.store.bytes -= core.store.images[i].size;
  munmap(core.store.images[i].bytes, core.store.images[i].size);
  memmove(&core.store.images[i], &core.store.images[i + 1],
          (core.store.num_images - i - 1) * sizeof *core.store.images);
  core.store.num_images--;
}

static image *find_image(uint32_t id) {
  for (uint32_t i = 0; i < core.store.num_images; i++) {
    if (core.store.images[i].id == id) return &core.store.images[i];
  }
  return NULL;
}

// make_room evicts images until size bytes fit. It returns false if that is impossible.
static bool make_room(size_t size) {
  if (size > core.store.limit) return false;
  uint32_t i = 0;
  while (core.store.bytes + size > core.store.limit || core.store.num_images >= MAX_IMAGES) {
    while (i < core.store.num_images &&
           (core.store.images[i].loaded > 0 || core.store.images[i].pins > 0)) {
      i++;
    }
    if (i == core.store.num_images) return false;
    drop_image(i);
    core.store.evicted++;
  }
  return true;
}

// keep finds or copies an image. It returns NULL if there is no room. The caller holds the lock.
static image *keep(const gpufl_module_data *m) {
  for (uint32_t i = 0; i < core.store.num_images; i++) {
    image *at = &core.store.images[i];
    if (at->size == m->cubinSize && memcmp(at->bytes, m->pCubin, m->cubinSize) == 0) return at;
  }
  if (!make_room(m->cubinSize) ||
      !grow((void **)&core.store.images, core.store.num_images, &core.store.room_images,
            sizeof *core.store.images, MAX_IMAGES)) {
    return NULL;
  }
  uint8_t *bytes =
      mmap(NULL, m->cubinSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) return NULL;
  memcpy(bytes, m->pCubin, m->cubinSize);
  image *at = &core.store.images[core.store.num_images++];
  *at = (image){.id = ++core.store.last_id, .size = m->cubinSize, .bytes = bytes};
  core.store.bytes += m->cubinSize;
  return at;
}

static void module_loaded(const gpufl_module_data *m) {
  if (m == NULL || m->pCubin == NULL || m->cubinSize == 0) return;
  pthread_mutex_lock(&core.store.lock);
  bool known = false;
  for (uint32_t i = core.store.num_modules; i > 0 && !known; i--) {
    known = core.store.modules[i - 1].module == m->moduleId;
  }
  if (core.store.open && !known) {
    image *at = keep(m);
    if (at != NULL && grow((void **)&core.store.modules, core.store.num_modules,
                           &core.store.room_modules, sizeof *core.store.modules, MAX_MODULES)) {
      at->loaded++;
      at->loads++;
      core.store.modules[core.store.num_modules++] = (loaded_module){m->moduleId, at->id};
    } else if (at == NULL) {
      core.store.refused++;
      core.store.refused_bytes += m->cubinSize;
    }
  }
  pthread_mutex_unlock(&core.store.lock);
}

static void module_unloads(const gpufl_module_data *m) {
  if (m == NULL) return;
  pthread_mutex_lock(&core.store.lock);
  for (uint32_t i = 0; i < core.store.num_modules; i++) {
    if (core.store.modules[i].module != m->moduleId) continue;
    image *at = find_image(core.store.modules[i].image);
    if (at != NULL && at->loaded > 0) at->loaded--;
    core.store.modules[i] = core.store.modules[--core.store.num_modules];
    break;
  }
  pthread_mutex_unlock(&core.store.lock);
}

uint32_t gpufl_module_loads(uint64_t crc) {
  uint32_t loads = 0;
  pthread_mutex_lock(&core.store.lock);
  for (uint32_t i = 0; i < core.store.num_images; i++) {
    if (core.store.images[i].has_crc && core.store.images[i].crc == crc) {
      loads += core.store.images[i].loads;
    }
  }
  pthread_mutex_unlock(&core.store.lock);
  return loads;
}

// pin_without_crc pins the next image without a CRC and copies its entry. It returns false if there
// is none.
static bool pin_without_crc(image *out, uint32_t after) {
  bool found = false;
  pthread_mutex_lock(&core.store.lock);
  for (uint32_t i = 0; i < core.store.num_images && !found; i++) {
    image *at = &core.store.images[i];
    if (at->has_crc || at->id <= after) continue;
    at->pins++;
    *out = *at;
    found = true;
  }
  pthread_mutex_unlock(&core.store.lock);
  return found;
}

static void unpin(const image *pinned, bool has_crc, uint64_t crc) {
  pthread_mutex_lock(&core.store.lock);
  image *at = find_image(pinned->id);
  if (at != NULL) {
    at->pins--;
    if (has_crc) {
      at->has_crc = true;
      at->crc = crc;
    }
  }
  pthread_mutex_unlock(&core.store.lock);
}

static void compute_crcs(void) {
  if (gpufl_deep.calls.cubin_crc == NULL) return;
  image pinned = {0};
  while (pin_without_crc(&pinned, pinned.id)) {
    gpufl_cubin_crc p = {.size = GPUFL_SIZE_TO(gpufl_cubin_crc, cubinCrc),
                         .cubinSize = pinned.size,
                         .cubin = pinned.bytes};
    bool ok = gpufl_deep.calls.cubin_crc(&p) == GPUFL_CUPTI_SUCCESS;
    unpin(&pinned, ok, p.cubinCrc);
  }
}

int gpufl_cubins(gpufl_cubin *out, int n) {
  if (gpufl_is_child()) return GPUFL_FORKED;
  if (!gpufl_deep_is_given_up()) compute_crcs();
  pthread_mutex_lock(&core.store.lock);
  int count = (int)core.store.num_images;
  for (int i = 0; i < count && i < n; i++) {
    const image *at = &core.store.images[i];
    out[i] = (gpufl_cubin){.id = at->id,
                           .loaded = at->loaded > 0,
                           .has_crc = at->has_crc,
                           .crc = at->crc,
                           .size = at->size};
  }
  pthread_mutex_unlock(&core.store.lock);
  return count;
}

int gpufl_cubin_copy(uint32_t id, void *to, uint64_t size) {
  if (gpufl_is_child()) return 0;
  pthread_mutex_lock(&core.store.lock);
  image *at = find_image(id);
  image pinned = {0};
  if (at != NULL && at->size == size) {
    at->pins++;
    pinned = *at;
  }
  pthread_mutex_unlock(&core.store.lock);
  if (pinned.bytes == NULL) return 0;
  memcpy(to, pinned.bytes, size);
  unpin(&pinned, false, 0);
  return 1;
}

void gpufl_get_cubin_stats(gpufl_cubin_stats *out) {
  memset(out, 0, sizeof *out);
  if (gpufl_is_child()) return;
  pthread_mutex_lock(&core.store.lock);
  *out = (gpufl_cubin_stats){.images = core.store.num_images,
                             .bytes = core.store.bytes,
                             .refused = core.store.refused,
                             .refused_bytes = core.store.refused_bytes,
                             .evicted = core.store.evicted};
  pthread_mutex_unlock(&core.store.lock);
}

// ---- contexts ----

// find_context returns the entry of a context, or NULL. The caller holds the lock.
static gpufl_context *find_context(void *handle) {
  for (int i = 0; i < core.contexts.n; i++) {
    if (core.contexts.all[i].handle == handle) return &core.contexts.all[i];
  }
  return NULL;
}

// add_context adds or replaces an entry. It returns false if the table is full. The caller holds
// the lock.
static bool add_context(gpufl_context context) {
  gpufl_context *at = find_context(context.handle);
  if (at == NULL && core.contexts.n == GPUFL_MAX_CONTEXTS) return false;
  if (at == NULL) at = &core.contexts.all[core.contexts.n++];
  *at = context;
  return true;
}

static void context_created(void *handle) {
  if (handle == NULL) return;
  // An earlier context with this handle, if its end was not reported.
  gpufl_lease_context_ends(handle);
  pthread_mutex_lock(&core.contexts.lock);
  if (!add_context((gpufl_context){.handle = handle, .device = -1, .seen = true})) {
    core.contexts.more++;
  }
  pthread_mutex_unlock(&core.contexts.lock);
}

static void context_ends(void *handle) {
  // The context exists until the window has released it. With ending set, no window uses it again.
  pthread_mutex_lock(&core.contexts.lock);
  gpufl_context *at = find_context(handle);
  if (at != NULL) at->ending = true;
  pthread_mutex_unlock(&core.contexts.lock);
  gpufl_deep_context_ends(handle);
  pthread_mutex_lock(&core.contexts.lock);
  at = find_context(handle);
  if (at != NULL) {
    *at = core.contexts.all[--core.contexts.n];
  } else if (core.contexts.more > 0) {
    core.contexts.more--;
  }
  pthread_mutex_unlock(&core.contexts.lock);
}

bool gpufl_context_exists(void *handle) {
  pthread_mutex_lock(&core.contexts.lock);
  bool found = find_context(handle) != NULL;
  pthread_mutex_unlock(&core.contexts.lock);
  return found;
}

bool gpufl_context_lives(void *handle) {
  pthread_mutex_lock(&core.contexts.lock);
  const gpufl_context *at = find_context(handle);
  bool lives = at != NULL && !at->ending;
  pthread_mutex_unlock(&core.contexts.lock);
  return lives;
}

// add_primary adds the primary contexts that are older than the subscription. It does not keep them
// retained.
static void add_primary(void) {
  const gpufl_deep_driver_calls *d = &gpufl_deep.driver;
  if (!gpufl_driver_ready() || d->primary_state == NULL || d->primary_retain == NULL ||
      d->primary_release == NULL) {
    return;
  }
  int devices = 0;
  if (gpufl_driver.device_count(&devices) != 0) return;
  for (int i = 0; i < devices; i++) {
    int device = 0, active = 0;
    unsigned flags = 0;
    void *handle = NULL;
    if (gpufl_driver.device_get(&device, i) != 0 ||
        d->primary_state(device, &flags, &active) != 0 || !active) {
      continue;
    }
    if (d->primary_retain(&handle, device) != 0) continue;
    d->primary_release(device);
    pthread_mutex_lock(&core.contexts.lock);
    if (find_context(handle) == NULL) add_context((gpufl_context){.handle = handle, .device = i});
    pthread_mutex_unlock(&core.contexts.lock);
  }
}

int gpufl_known_contexts(void) {
  pthread_mutex_lock(&core.contexts.lock);
  int n = 0;
  for (int i = 0; i < core.contexts.n; i++) n += !core.contexts.all[i].ending;
  pthread_mutex_unlock(&core.contexts.lock);
  return n;
}

int gpufl_contexts(gpufl_context out[GPUFL_MAX_CONTEXTS], uint64_t *more) {
  add_primary();
  pthread_mutex_lock(&core.contexts.lock);
  int n = 0;
  for (int i = 0; i < core.contexts.n; i++) {
    if (!core.contexts.all[i].ending) out[n++] = core.contexts.all[i];
  }
  *more = core.contexts.more;
  pthread_mutex_unlock(&core.contexts.lock);
  for (int i = 0; i < n; i++) {
    uint32_t device = 0;
    if (out[i].device >= 0 || gpufl_deep.calls.context_device == NULL) continue;
    if (gpufl_deep.calls.context_device(out[i].handle, &device) == GPUFL_CUPTI_SUCCESS) {
      out[i].device = (int32_t)device;
    }
  }
  return n;
}

// ---- captures ----

static void capture_ends(void *stream) {
  pthread_mutex_lock(&core.captures.lock);
  for (uint32_t i = 0; i < core.captures.n; i++) {
    if (core.captures.streams[i] != stream) continue;
    core.captures.streams[i] = core.captures.streams[--core.captures.n];
    break;
  }
  pthread_mutex_unlock(&core.captures.lock);
}

void gpufl_on_capture(bool begins, const gpufl_callback_data *call) {
  if (call->callbackSite != GPUFL_CUPTI_API_EXIT || call->functionParams == NULL ||
      call->functionReturnValue == NULL) {
    return;
  }
  // The stream is the first parameter of all these functions.
  void *stream = *(void *const *)call->functionParams;
  if (!begins) {
    // Also after an error: an invalidated capture has ended as well.
    capture_ends(stream);
    return;
  }
  if (*(const int *)call->functionReturnValue != 0) return;
  pthread_mutex_lock(&core.captures.lock);
  if (core.captures.n < MAX_CAPTURES) core.captures.streams[core.captures.n++] = stream;
  pthread_mutex_unlock(&core.captures.lock);
}

uint32_t gpufl_captures(void) {
  pthread_mutex_lock(&core.captures.lock);
  uint32_t n = core.captures.n;
  pthread_mutex_unlock(&core.captures.lock);
  return n;
}

// ---- callbacks and state ----

void gpufl_on_resource(uint32_t cbid, const void *data) {
  const gpufl_resource_data *r = data;
  if (r == NULL) return;
  switch (cbid) {
    case GPUFL_CUPTI_CBID_RESOURCE_CONTEXT_CREATED:
      context_created(r->context);
      break;
    case GPUFL_CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
      context_ends(r->context);
      break;
    case GPUFL_CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING:
      capture_ends(r->resourceHandle);
      break;
    case GPUFL_CUPTI_CBID_RESOURCE_MODULE_LOADED:
    case GPUFL_CUPTI_CBID_RESOURCE_MODULE_PROFILED:
      module_loaded(r->resourceDescriptor);
      break;
    case GPUFL_CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
      module_unloads(r->resourceDescriptor);
      break;
    default:
      break;
  }
}

// The longest expected capture. One that began before captures were reported has probably ended
// after this time.
#define LONGEST_CAPTURE_NS ((int64_t)5 * 1000000000)

bool gpufl_captures_known(void) {
  int64_t since = atomic_load(&core.reported_since);
  return since != 0 && gpufl_monotonic() - since > LONGEST_CAPTURE_NS;
}

void gpufl_resources_open(uint64_t max_bytes) {
  atomic_store(&core.reported_since, gpufl_monotonic());
  pthread_mutex_lock(&core.store.lock);
  core.store.open = true;
  core.store.limit = max_bytes;
  core.store.refused = core.store.refused_bytes = core.store.evicted = 0;
  pthread_mutex_unlock(&core.store.lock);
}

void gpufl_resources_close(void) {
  gpufl_resources_lose();
  pthread_mutex_lock(&core.store.lock);
  core.store.open = false;
  // A pinned image stays. The next session can find or evict it.
  for (uint32_t i = core.store.num_images; i > 0; i--) {
    if (core.store.images[i - 1].pins == 0) drop_image(i - 1);
  }
  pthread_mutex_unlock(&core.store.lock);
}

void gpufl_resources_lose(void) {
  atomic_store(&core.reported_since, 0);
  pthread_mutex_lock(&core.store.lock);
  for (uint32_t i = 0; i < core.store.num_images; i++) core.store.images[i].loaded = 0;
  core.store.num_modules = 0;
  pthread_mutex_unlock(&core.store.lock);
  pthread_mutex_lock(&core.contexts.lock);
  core.contexts.n = 0;
  core.contexts.more = 0;
  pthread_mutex_unlock(&core.contexts.lock);
  pthread_mutex_lock(&core.captures.lock);
  core.captures.n = 0;
  pthread_mutex_unlock(&core.captures.lock);
}
