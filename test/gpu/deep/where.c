// SPDX-License-Identifier: Apache-2.0
//
// Samples the location of a process's threads by their processor time:
//
//	test/gpu/build --programs bin
//	bin/where PID [HERTZ]        # until its standard input ends
//
// When it watches, it prints the number of threads. At the end it prints one line per location:
// thread id, count, file offset and file, or [kernel] and the address. It needs perf_event_open's
// clock and permission to watch the process.

#include <errno.h>
#include <inttypes.h>
#include <dirent.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_THREADS = 512, MOST_MAPS = 16384, PAGES = 64, PLACES = 1 << 20 };
typedef struct {
  int tid, fd;
  struct perf_event_mmap_page *ring;
} thread;
typedef struct {
  uint64_t begin, end, offset;
  char name[200];
} map;
typedef struct {
  uint64_t address;
  int tid;
  uint32_t count;
} place;
static thread threads[MOST_THREADS];
static map maps[MOST_MAPS];
static place *places;
static size_t page;
static int number;
static uint64_t lost;

static void count(int tid, uint64_t address) {
  for (uint64_t h = (address ^ (uint64_t)tid << 40) * 0x9E3779B97F4A7C15u >> 44, i = 0; i < PLACES; i++) {
    place *p = &places[(h + i) % PLACES];
    if (p->count > 0 && (p->address != address || p->tid != tid)) continue;
    *p = (place){.address = address, .tid = tid, .count = p->count + 1};
    return;
  }
  lost++;
}

// drain reads all samples from the ring of one thread.
static void drain(thread *t) {
  const char *data = (const char *)t->ring + page;
  uint64_t size = PAGES * page, head = __atomic_load_n(&t->ring->data_head, __ATOMIC_ACQUIRE), tail = t->ring->data_tail;
  while (tail < head) {
    char record[512];
    struct perf_event_header h;
    for (size_t i = 0; i < sizeof h; i++) ((char *)&h)[i] = data[(tail + i) % size];
    if (h.size < sizeof h) break;
    for (size_t i = 0; i < h.size && i < sizeof record; i++) record[i] = data[(tail + i) % size];
    if (h.type == PERF_RECORD_SAMPLE) {
      uint64_t address;
      memcpy(&address, record + sizeof h, sizeof address);
      count(t->tid, address);
    } else if (h.type == PERF_RECORD_LOST) {
      uint64_t n;
      memcpy(&n, record + sizeof h + 8, sizeof n);
      lost += n;
    }
    tail += h.size;
  }
  __atomic_store_n(&t->ring->data_tail, tail, __ATOMIC_RELEASE);
}

static int watch(int pid, unsigned long hertz) {
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/task", pid);
  DIR *d = opendir(name);
  if (d == NULL) return -1;
  for (struct dirent *e; (e = readdir(d)) != NULL && number < MOST_THREADS;) {
    int tid = atoi(e->d_name);
    if (tid == 0) continue;
    struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_TASK_CLOCK,
                                .sample_period = 1000000000 / hertz, .sample_type = PERF_SAMPLE_IP};
    int fd = (int)syscall(SYS_perf_event_open, &a, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0) {
      if (errno == ESRCH) continue;
      perror("perf_event_open");
      return -1;
    }
    void *ring = mmap(NULL, (PAGES + 1) * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED) {
      perror("mmap");
      return -1;
    }
    threads[number++] = (thread){.tid = tid, .fd = fd, .ring = ring};
  }
  closedir(d);
  return 0;
}

static int read_maps(int pid) {
  char line[1024];
  snprintf(line, sizeof line, "/proc/%d/maps", pid);
  FILE *f = fopen(line, "r");
  int n = 0;
  while (f != NULL && n < MOST_MAPS && fgets(line, sizeof line, f) != NULL) {
    map *m = &maps[n];
    m->name[0] = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %199[^\n]", &m->begin, &m->end, &m->offset, m->name) >= 3) n++;
  }
  if (f != NULL) fclose(f);
  return n;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "where PID [HERTZ]\n");
    return 2;
  }
  int pid = atoi(argv[1]);
  unsigned long hertz = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
  page = (size_t)sysconf(_SC_PAGESIZE);
  places = calloc(PLACES, sizeof *places);
  if (hertz == 0 || places == NULL || watch(pid, hertz) != 0) return 1;
  printf("%d threads\n", number);
  fflush(stdout);
  struct pollfd in = {.fd = 0, .events = POLLIN};
  do {
    for (int i = 0; i < number; i++) drain(&threads[i]);
  } while (poll(&in, 1, 50) == 0);
  for (int i = 0; i < number; i++) drain(&threads[i]);
  int n = read_maps(pid);
  for (size_t i = 0; i < PLACES; i++) {
    place *p = &places[i];
    if (p->count == 0) continue;
    const char *name = p->address >> 63 ? "[kernel]" : "[unknown]";
    uint64_t offset = p->address;
    for (int k = 0; k < n; k++) {
      if (p->address >= maps[k].begin && p->address < maps[k].end) {
        offset = p->address - maps[k].begin + maps[k].offset;
        name = maps[k].name[0] ? maps[k].name : "[anonymous]";
      }
    }
    printf("%d %u %" PRIx64 " %s\n", p->tid, p->count, offset, name);
  }
  if (lost > 0) fprintf(stderr, "%" PRIu64 " samples lost\n", lost);
  return 0;
}
