// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "gpufl_deep_internal.h"

// A context that was sampled once is sampled again whenever any process samples the same GPU. The
// other process then receives its samples, or crashes (CUPTI 13.0, driver 580). No function of
// CUPTI ends that. So the first process that samples a GPU holds a lease on it until it exits. It
// samples one context of that GPU until the context is destroyed.
//
// The lease is a file lock in the user's runtime folder. The kernel releases it when the process
// exits and can name the holder. It does not cover processes of other users, and containers with a
// folder of their own. For other tools, pcsampling.c also queries CUPTI whether the counters are
// free.

enum { MAX_LEASES = 64 };

static struct {
  pthread_mutex_t lock;
  struct {
    int32_t device;
    int fd; // -1: no file
  } held[MAX_LEASES];
  int num_held;
  struct {
    void *handle;
    int32_t device;
  } sampled[GPUFL_MAX_CONTEXTS];
  int num_sampled;
  _Atomic int32_t holder;
} leases = {.lock = PTHREAD_MUTEX_INITIALIZER};

// lease_path returns false if there is no folder, or no UUID to distinguish GPUs by.
static bool lease_path(int32_t device, char path[4096]) {
  int handle = 0;
  uint8_t uuid[16];
  const char *dir = gpufl_deep.lease_dir;
  if (dir[0] == 0 || !gpufl_driver_ready() || gpufl_driver.device_get(&handle, device) != 0) {
    return false;
  }
  // A MIG instance is a GPU of its own. Only the second version distinguishes instances.
  if (!(gpufl_driver.device_uuid_v2 != NULL && gpufl_driver.device_uuid_v2(uuid, handle) == 0) &&
      !(gpufl_driver.device_uuid != NULL && gpufl_driver.device_uuid(uuid, handle) == 0)) {
    return false;
  }
  int n = snprintf(path, 4096, "%s/pc-", dir);
  for (size_t i = 0; i < sizeof uuid; i++) {
    n += snprintf(path + n, 4096 - (size_t)n, "%02x", uuid[i]);
  }
  n += snprintf(path + n, 4096 - (size_t)n, ".lock");
  return n < 4096;
}

// lock_file locks the file until the process exits: only this function opens it, so nothing closes
// it early. A forked child does not inherit such a lock. Without a file it returns GPUFL_OK.
static int lock_file(int32_t device, int *out) {
  char path[4096];
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  if (!lease_path(device, path)) return GPUFL_OK;
  int fd = *out = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0 || fcntl(fd, F_SETLK, &lock) == 0) {
    return GPUFL_OK; // without a file, only CUPTI's answer counts
  }
  // Other errors come from file systems without locks.
  int result = errno == EACCES || errno == EAGAIN ? GPUFL_TAKEN : GPUFL_OK;
  if (result == GPUFL_TAKEN) {
    bool known = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0;
    atomic_store(&leases.holder, known ? (int32_t)lock.l_pid : 0);
  }
  close(fd);
  *out = -1;
  return result;
}

int gpufl_lease(void *handle, int32_t device, bool *first) {
  int result = GPUFL_OK;
  bool leased = false, known = false;
  pthread_mutex_lock(&leases.lock);
  for (int i = 0; i < leases.num_held; i++) leased = leased || leases.held[i].device == device;
  for (int i = 0; i < leases.num_sampled && result == GPUFL_OK; i++) {
    if (leases.sampled[i].device != device) continue;
    known = leases.sampled[i].handle == handle;
    if (known) continue;
    atomic_store(&leases.holder, (int32_t)getpid());
    result = GPUFL_TAKEN;
  }
  if (result == GPUFL_OK && !leased) {
    int fd = -1;
    result = leases.num_held == MAX_LEASES ? GPUFL_NO_MEMORY : lock_file(device, &fd);
    if (result == GPUFL_OK) {
      leases.held[leases.num_held].device = device;
      leases.held[leases.num_held++].fd = fd;
    }
  }
  if (result == GPUFL_OK && !known) {
    if (leases.num_sampled == GPUFL_MAX_CONTEXTS) {
      result = GPUFL_NO_MEMORY;
    } else {
      leases.sampled[leases.num_sampled].handle = handle;
      leases.sampled[leases.num_sampled++].device = device;
    }
  }
  *first = !known;
  pthread_mutex_unlock(&leases.lock);
  return result;
}

// forget removes a context. The caller holds the lock.
static void forget(void *handle) {
  for (int i = 0; i < leases.num_sampled; i++) {
    if (leases.sampled[i].handle == handle) {
      leases.sampled[i--] = leases.sampled[--leases.num_sampled];
    }
  }
}

void gpufl_lease_context_ends(void *handle) {
  pthread_mutex_lock(&leases.lock);
  forget(handle);
  pthread_mutex_unlock(&leases.lock);
}

void gpufl_lease_cancel(void *handle, int32_t device) {
  pthread_mutex_lock(&leases.lock);
  forget(handle);
  for (int i = 0; i < leases.num_held; i++) {
    if (leases.held[i].device != device) continue;
    if (leases.held[i].fd >= 0) close(leases.held[i].fd);
    leases.held[i--] = leases.held[--leases.num_held];
  }
  pthread_mutex_unlock(&leases.lock);
}

int32_t gpufl_deep_holder(void) { return atomic_load(&leases.holder); }
