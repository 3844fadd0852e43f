// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpufl_deep_internal.h"

// Once a context has been sampled, whoever samples on that GPU gets its samples too, until it ends: also another process, which finds
// them among its own functions, or crashes as it looks for them. Nothing that CUPTI has takes that back, cuptiFinalize included (CUPTI 13.0,
// driver 580, test/gpu/deep/foreign.py). So of a GPU one context is sampled, of one process, for as long as it lives.
//
// A process that samples shows it in two ways, of which each reaches where the other does not, and which both end with the process:
//
// It listens at a name of the GPU's, in the abstract namespace of sockets, and the kernel tells whose that is. Processes in other network
// namespaces have other names.
//
// Any process of the machine can listen at that name first, whether it samples or not. The kernel tells the user who listens. A process of
// the same user or of root is believed. Of another user's process it is not known whether it samples. The window is refused, since mixed
// samples and crashes are worse than a missing window, and the refusal names that user. So one thing remains: another user of the same
// machine can deny windows of PC sampling on a GPU, with the name or with a lock. Nothing else can be gained from either.
//
// It locks a byte of the GPU's in the driver's library, which containers get mounted from the host: it is the same file in all of them.
// They may only read it, so it is a lock for readers, and these do not keep each other away: whoever has locked
// looks who else has, and if there is one lets go. Of two at the same time neither has the GPU then, and both can ask again. Processes
// with a library of their own, such as that of a package for forward compatibility, have another file.

enum { MAX_CLAIMS = 64, BACKLOG = 64 };

typedef struct {
  int32_t device;
  int fd;      // of the socket
  int lock;    // of the library; -1: there are no locks
  dev_t on;    // of that file
  ino_t file;
  bool wanted; // a window is about to sample
  bool kept;   // marks had no room: until the process ends
  struct sockaddr_un name;
  socklen_t length;
  off_t at;    // the byte
} claim;

// marks are the contexts that have been sampled.
static struct {
  void *handle;
  int32_t device;
} marks[GPUFL_MAX_CONTEXTS];
static int num_marks;
static claim claims[MAX_CLAIMS];
static int num_claims;
static pthread_mutex_t claims_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int32_t holder;
static _Atomic int64_t holder_user = -1;

static void set_holder(int32_t pid, int64_t user) {
  atomic_store(&holder, pid);
  atomic_store(&holder_user, user);
}

static bool name_gpu(claim *c) {
  int handle = 0;
  uint8_t uuid[16];
  if (!gpufl_driver_ready() || gpufl_driver.device_get(&handle, c->device) != 0) return false;
  // An instance of MIG is a GPU of its own.
  if (!(gpufl_driver.device_uuid_v2 != NULL && gpufl_driver.device_uuid_v2(uuid, handle) == 0) &&
      !(gpufl_driver.device_uuid != NULL && gpufl_driver.device_uuid(uuid, handle) == 0)) {
    return false;
  }
  memset(&c->name, 0, sizeof c->name);
  c->name.sun_family = AF_UNIX;
  char *at = c->name.sun_path + 1; // after a zero: abstract
  int n = snprintf(at, sizeof c->name.sun_path - 1, "gpuflight/pc/");
  for (size_t i = 0; i < sizeof uuid; i++) n += snprintf(at + n, sizeof c->name.sun_path - 1 - (size_t)n, "%02x", uuid[i]);
  c->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  uint64_t hash = 14695981039346656037u; // FNV-1a
  for (int i = 0; i < n; i++) hash = (hash ^ (unsigned char)at[i]) * 1099511628211u;
  c->at = (off_t)(hash >> 2); // no file is so long
  return true;
}

// listens and locked say whether a claim's descriptors are still what they were: a program may close what it does not know.
static bool listens(const claim *c) {
  struct sockaddr_un name;
  socklen_t length = sizeof name;
  return getsockname(c->fd, (struct sockaddr *)&name, &length) == 0 && length == c->length && memcmp(&name, &c->name, length) == 0;
}

static bool locked(const claim *c) {
  struct stat s;
  return c->lock >= 0 && fstat(c->lock, &s) == 0 && s.st_dev == c->on && s.st_ino == c->file;
}

static void let_go(claim *c) {
  if (listens(c)) close(c->fd);
  if (locked(c)) close(c->lock);
  c->fd = c->lock = -1;
}

// find_holder stores who listens at a name: the process, and its user where that is neither ours nor root.
static void find_holder(const struct sockaddr_un *name, socklen_t length) {
  struct ucred peer = {0};
  socklen_t size = sizeof peer;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bool known = fd >= 0 && connect(fd, (const struct sockaddr *)name, length) == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (fd >= 0) close(fd);
  bool believed = !known || peer.uid == 0 || peer.uid == geteuid();
  set_holder(known ? (int32_t)peer.pid : 0, believed ? -1 : (int64_t)peer.uid);
}

// turn_away forgets who has asked, to have room for others.
static void turn_away(const claim *c) {
  for (int i = 0, fd; i <= BACKLOG && (fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0; i++) close(fd);
}

static int take_name(claim *c) {
  c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (c->fd < 0) return GPUFL_NO_MEMORY;
  if (bind(c->fd, (const struct sockaddr *)&c->name, c->length) == 0 && listen(c->fd, BACKLOG) == 0) return GPUFL_OK;
  int why = errno;
  close(c->fd);
  c->fd = -1;
  if (why != EADDRINUSE) return GPUFL_NO_MEMORY;
  find_holder(&c->name, c->length);
  return GPUFL_TAKEN;
}

// take_lock is GPUFL_OK as well where the library cannot be locked: it is not on every file system that it can.
static int take_lock(claim *c) {
  // Not locks of the process: the C library opens and closes this file too, with which those would end.
  struct flock ours = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = c->at, .l_len = 1}, theirs = ours;
  theirs.l_type = F_WRLCK;
  struct stat s;
  c->lock = open(gpufl_driver_path(), O_RDONLY | O_CLOEXEC);
  if (c->lock < 0) return GPUFL_OK;
  bool can = fstat(c->lock, &s) == 0 && fcntl(c->lock, F_OFD_SETLK, &ours) == 0 && fcntl(c->lock, F_OFD_GETLK, &theirs) == 0;
  bool taken = can && theirs.l_type != F_UNLCK && theirs.l_start == c->at && theirs.l_len == 1;
  if (can && !taken) {
    c->on = s.st_dev;
    c->file = s.st_ino;
    return GPUFL_OK;
  }
  close(c->lock);
  c->lock = -1;
  if (!taken) return GPUFL_OK;
  set_holder(0, -1);
  return GPUFL_TAKEN;
}

// take takes what a claim does not have yet, or any more.
static int take(claim *c) {
  int result = GPUFL_OK;
  if (listens(c)) {
    turn_away(c);
  } else {
    result = take_name(c);
  }
  return result == GPUFL_OK && !locked(c) ? take_lock(c) : result;
}

static claim *find(int32_t device) {
  for (int i = 0; i < num_claims; i++) {
    if (claims[i].device == device) return &claims[i];
  }
  return NULL;
}

// gpufl_claim has the lock for the table alone: a callback of CUPTI's that waits for it may have what the driver or a file system
// needs. Meanwhile nobody else claims, which takes the lock of the operation, and one that is wanted stays in the table.
int gpufl_claim(int32_t device) {
  claim ours = {.device = device, .fd = -1, .lock = -1};
  pthread_mutex_lock(&claims_lock);
  claim *known = find(device);
  bool full = num_claims == MAX_CLAIMS;
  if (known != NULL) {
    known->wanted = true;
    ours = *known;
  }
  pthread_mutex_unlock(&claims_lock);
  if (known == NULL && (full || !name_gpu(&ours))) return GPUFL_OK; // one without a UUID cannot be told from others
  int result = take(&ours);
  if (known == NULL && result != GPUFL_OK) {
    let_go(&ours);
    return result;
  }
  pthread_mutex_lock(&claims_lock);
  ours.wanted = result == GPUFL_OK;
  if ((known = find(device)) == NULL) {
    claims[num_claims++] = ours;
  } else {
    ours.kept = known->kept;
    *known = ours; // if it was refused, what is left shows all the same that a context was sampled
  }
  pthread_mutex_unlock(&claims_lock);
  return result;
}

bool gpufl_claim_mark(void *handle, int32_t device) {
  pthread_mutex_lock(&claims_lock);
  bool known = false;
  for (int i = 0; i < num_marks && !known; i++) known = marks[i].handle == handle;
  if (!known && num_marks < GPUFL_MAX_CONTEXTS) {
    marks[num_marks].handle = handle;
    marks[num_marks++].device = device;
  } else if (!known) {
    for (int i = 0; i < num_claims; i++) claims[i].kept = claims[i].kept || claims[i].device == device;
  }
  pthread_mutex_unlock(&claims_lock);
  return !known;
}

void gpufl_claim_unmark(void *handle) {
  pthread_mutex_lock(&claims_lock);
  for (int i = 0; i < num_marks; i++) {
    if (marks[i].handle == handle) marks[i--] = marks[--num_marks];
  }
  pthread_mutex_unlock(&claims_lock);
}

bool gpufl_claim_other(void *handle, int32_t device) {
  bool found = false;
  pthread_mutex_lock(&claims_lock);
  for (int i = 0; i < num_marks && !found; i++) found = marks[i].device == device && marks[i].handle != handle;
  if (found) set_holder((int32_t)getpid(), -1);
  pthread_mutex_unlock(&claims_lock);
  return found;
}

void gpufl_claims_settle(bool wanted) {
  pthread_mutex_lock(&claims_lock);
  for (int i = 0; i < num_claims; i++) {
    claims[i].wanted = claims[i].wanted && wanted;
    bool needed = claims[i].kept || claims[i].wanted;
    for (int k = 0; k < num_marks && !needed; k++) needed = marks[k].device == claims[i].device;
    if (needed) continue;
    let_go(&claims[i]);
    claims[i--] = claims[--num_claims];
  }
  pthread_mutex_unlock(&claims_lock);
}

int32_t gpufl_deep_holder(void) { return atomic_load(&holder); }

int64_t gpufl_deep_holder_user(void) { return atomic_load(&holder_user); }

void gpufl_claims_in_child(void) {
  // Another thread may have had the lock, which is why it is not taken. What it was adding is closed with the child.
  for (int i = 0; i < num_claims && i < MAX_CLAIMS; i++) let_go(&claims[i]);
}
