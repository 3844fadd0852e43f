// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpufl_deep_internal.h"

// The results of a window: rows, the names of functions and of stall reasons or metrics, and
// counts.

enum {
  MAX_FUNCTIONS = 1 << 16,
  FUNCTION_SLOTS = 1 << 17,
  MAX_FUNCTION_NAME = 64 << 10,
  MAX_FUNCTION_BYTES = 16 << 20,
  FIRST_ROWS = 1 << 12,
};

// window.lock is never held while CUPTI is called.
static struct {
  pthread_mutex_t lock;
  gpufl_deep_row *rows; // a ring
  uint32_t capacity, first, used, limit;
  char *names[GPUFL_MAX_NAMES];
  bool known[GPUFL_MAX_NAMES];
  uint32_t num_names, configured;
  char **functions;
  uint32_t *slots; // by hash: index in functions, 0 for none
  uint32_t num_functions;
  size_t function_bytes;
} window = {.lock = PTHREAD_MUTEX_INITIALIZER};

void gpufl_window_count(uint64_t *which, uint64_t n) {
  if (n == 0) return;
  pthread_mutex_lock(&window.lock);
  *which += n;
  pthread_mutex_unlock(&window.lock);
}

// release frees the results. The caller has the lock.
static void release(void) {
  for (uint32_t i = 0; i < window.num_names; i++) free(window.names[i]);
  for (uint32_t i = 1; i < window.num_functions; i++) free(window.functions[i]);
  free(window.functions);
  free(window.slots);
  free(window.rows);
  window.rows = NULL;
  window.functions = NULL;
  window.slots = NULL;
  window.capacity = window.first = window.used = window.num_names = window.configured = window.num_functions = 0;
  window.function_bytes = 0;
}

static char other[] = "_other";

int gpufl_window_begin(const gpufl_deep_config *config) {
  int result = GPUFL_OK;
  pthread_mutex_lock(&window.lock);
  release();
  memset(&gpufl_deep.counts, 0, sizeof gpufl_deep.counts);
  memset(window.known, 0, sizeof window.known);
  gpufl_deep.config = *config;
  gpufl_deep.config.names = NULL; // the caller's
  gpufl_deep.config.lease_dir = NULL;
  snprintf(gpufl_deep.lease_dir, sizeof gpufl_deep.lease_dir, "%s", config->lease_dir != NULL ? config->lease_dir : "");
  window.limit = config->max_rows;
  window.functions = calloc(MAX_FUNCTIONS, sizeof *window.functions);
  window.slots = calloc(FUNCTION_SLOTS, sizeof *window.slots);
  if (window.functions == NULL || window.slots == NULL) result = GPUFL_NO_MEMORY;
  if (result == GPUFL_OK) window.functions[window.num_functions++] = other;
  for (uint32_t i = 0; i < config->num_names && result == GPUFL_OK; i++) {
    window.names[i] = strdup(config->names[i]);
    if (window.names[i] == NULL) result = GPUFL_NO_MEMORY;
    else window.num_names++;
  }
  window.configured = window.num_names;
  if (result != GPUFL_OK) release();
  pthread_mutex_unlock(&window.lock);
  return result;
}

uint32_t gpufl_window_name(const char *name) {
  uint32_t index = UINT32_MAX;
  pthread_mutex_lock(&window.lock);
  for (uint32_t i = 0; i < window.num_names && index == UINT32_MAX; i++) {
    if (strcmp(window.names[i], name) == 0) index = i;
  }
  if (index == UINT32_MAX && window.num_names < GPUFL_MAX_NAMES) {
    char *copy = strdup(name);
    if (copy != NULL) {
      index = window.num_names++;
      window.names[index] = copy;
    }
  }
  pthread_mutex_unlock(&window.lock);
  return index;
}

void gpufl_window_known(uint32_t index) {
  pthread_mutex_lock(&window.lock);
  if (index < window.configured) window.known[index] = true;
  pthread_mutex_unlock(&window.lock);
}

uint32_t gpufl_window_function(const char *name) {
  if (name == NULL) name = "";
  size_t length = strnlen(name, MAX_FUNCTION_NAME);
  uint32_t hash = gpufl_hash(name, length);
  uint32_t index = 0;
  pthread_mutex_lock(&window.lock);
  if (window.slots != NULL && length < MAX_FUNCTION_NAME) {
    uint32_t at = hash % FUNCTION_SLOTS;
    while ((index = window.slots[at]) != 0 && strcmp(window.functions[index], name) != 0) at = (at + 1) % FUNCTION_SLOTS;
    if (index == 0 && window.num_functions < MAX_FUNCTIONS && window.function_bytes + length < MAX_FUNCTION_BYTES) {
      char *copy = strdup(name);
      if (copy != NULL) {
        index = window.num_functions++;
        window.functions[index] = copy;
        window.slots[at] = index;
        window.function_bytes += length + 1;
      }
    }
  }
  if (index == 0) gpufl_deep.counts.lost_names++;
  pthread_mutex_unlock(&window.lock);
  return index;
}

// grow doubles the ring, up to its limit.
static bool grow(void) {
  if (window.capacity >= window.limit) return false;
  uint32_t capacity = window.capacity == 0 ? FIRST_ROWS : window.capacity * 2;
  if (capacity > window.limit) capacity = window.limit;
  gpufl_deep_row *rows = malloc(capacity * sizeof *rows);
  if (rows == NULL) return false;
  for (uint32_t i = 0; i < window.used; i++) rows[i] = window.rows[(window.first + i) % window.capacity];
  free(window.rows);
  window.rows = rows;
  window.capacity = capacity;
  window.first = 0;
  return true;
}

void gpufl_window_row(const gpufl_deep_row *row) {
  pthread_mutex_lock(&window.lock);
  if (window.used == window.capacity && !grow()) {
    gpufl_deep.counts.lost_rows++;
    gpufl_deep.counts.lost_value += row->value;
  } else {
    window.rows[(window.first + window.used++) % window.capacity] = *row;
  }
  pthread_mutex_unlock(&window.lock);
}

uint32_t gpufl_window_free_rows(void) {
  pthread_mutex_lock(&window.lock);
  uint32_t rows = window.limit - window.used;
  pthread_mutex_unlock(&window.lock);
  return rows;
}

int gpufl_deep_read(gpufl_deep_row *rows, int n) {
  if (gpufl_is_child()) return 0;
  int got = 0;
  pthread_mutex_lock(&window.lock);
  while (got < n && window.used > 0) {
    rows[got++] = window.rows[window.first];
    window.first = (window.first + 1) % window.capacity;
    window.used--;
  }
  pthread_mutex_unlock(&window.lock);
  return got;
}

const char *gpufl_deep_function(uint32_t index) {
  if (gpufl_is_child()) return NULL;
  pthread_mutex_lock(&window.lock);
  const char *text = index < window.num_functions ? window.functions[index] : NULL;
  pthread_mutex_unlock(&window.lock);
  return text;
}

const char *gpufl_deep_name(uint32_t index) {
  if (gpufl_is_child()) return NULL;
  pthread_mutex_lock(&window.lock);
  const char *text = index < window.num_names ? window.names[index] : NULL;
  pthread_mutex_unlock(&window.lock);
  return text;
}

int gpufl_deep_missing(uint32_t index) {
  if (gpufl_is_child()) return 0;
  pthread_mutex_lock(&window.lock);
  int missing = index < window.configured && !window.known[index];
  pthread_mutex_unlock(&window.lock);
  return missing;
}

void gpufl_window_end(void) {
  pthread_mutex_lock(&window.lock);
  release();
  pthread_mutex_unlock(&window.lock);
}

void gpufl_deep_get_counts(gpufl_deep_counts *out) {
  memset(out, 0, sizeof *out);
  if (gpufl_is_child()) return;
  gpufl_barrier_counts barrier = gpufl_barrier_take_counts(false);
  pthread_mutex_lock(&window.lock);
  *out = gpufl_deep.counts;
  pthread_mutex_unlock(&window.lock);
  out->blocked_calls = barrier.blocked;
  out->barrier_timeouts = barrier.timeouts;
  out->longest_block_ns = barrier.longest_ns;
}
