// SPDX-License-Identifier: Apache-2.0

// A CUPTI injection library that keeps CUPTI's output byte for byte, so that the decoder can be
// tested without a GPU. It is slow, and only for capturing test data.
//
// CUDA loads it through CUDA_INJECTION64_PATH. It writes into the folder GPUFLIGHT_DUMP_DIR:
//
//	meta.txt    "version N" (cuptiGetVersion) and "kinds a,b,c" (the enabled kinds)
//	NNNN.buf    the bytes of each completed buffer
//	NNNN.idx    the offsets of its records as CUPTI iterates them, little-endian uint32
//	names.txt   pointer in hex, tab, string, for each name that a record refers to
//
// GPUFLIGHT_DUMP_KINDS is a comma list of CUPTI's activity kinds. GPUFLIGHT_CUPTI is the path of
// libcupti.
//
//	gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -o libdump.so dump.c -ldl -lpthread

#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GPUFL_EXPORT __attribute__((visibility("default")))

enum {
	kind_kernel = 3,
	kind_concurrent_kernel = 10,
	kernel_name = 104, // offset of CUpti_ActivityKernel8…13's name
	external_custom2 = 5,
	buffer_bytes = 256 << 10,
	max_names = 1 << 14,
};

struct table {
	int (*version)(uint32_t *);
	int (*callbacks)(void (*)(uint8_t **, size_t *, size_t *), void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
	int (*clock)(uint64_t (*)(void));
	int (*enable)(int);
	int (*flush)(uint32_t);
	int (*next)(uint8_t *, size_t, void **);
	int (*push)(int, uint64_t);
	int (*pop)(int, uint64_t *);
};

static struct table cupti;
static char dir[4096];
static _Atomic int buffers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *names[max_names];

static FILE *create(const char *name, const char *mode) {
	char path[4200];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, mode);
	if (f == NULL)
		fprintf(stderr, "dump: cannot write %s\n", path);
	return f;
}

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void requested(uint8_t **buffer, size_t *size, size_t *records) {
	*buffer = aligned_alloc(4096, buffer_bytes);
	*size = *buffer == NULL ? 0 : buffer_bytes;
	*records = 0;
}

// keep_name writes a name once for each pointer. The caller holds the lock.
static void keep_name(const char *name) {
	if (name == NULL)
		return;
	size_t at = ((uintptr_t)name >> 3) * 2654435761u % max_names;
	for (int i = 0; i < max_names && names[at] != NULL; i++) {
		if (names[at] == name)
			return;
		at = (at + 1) % max_names;
	}
	names[at] = name;
	FILE *f = create("names.txt", "a");
	if (f != NULL) {
		fprintf(f, "%" PRIxPTR "\t%s\n", (uintptr_t)name, name);
		fclose(f);
	}
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
	(void)context, (void)stream, (void)size;
	pthread_mutex_lock(&lock);
	if (buffer != NULL && valid > 0) {
		int n = atomic_fetch_add(&buffers, 1);
		char name[32];
		snprintf(name, sizeof name, "%04d.buf", n);
		FILE *f = create(name, "w");
		if (f != NULL) {
			fwrite(buffer, 1, valid, f);
			fclose(f);
		}
		snprintf(name, sizeof name, "%04d.idx", n);
		f = create(name, "w");
		void *record = NULL;
		while (f != NULL && cupti.next(buffer, valid, &record) == 0) {
			uint32_t offset = (uint32_t)((uint8_t *)record - buffer), kind;
			fwrite(&offset, sizeof offset, 1, f);
			memcpy(&kind, record, sizeof kind);
			if (kind == kind_kernel || kind == kind_concurrent_kernel) {
				const char *symbol;
				memcpy(&symbol, (uint8_t *)record + kernel_name, sizeof symbol);
				keep_name(symbol);
			}
		}
		if (f != NULL)
			fclose(f);
	}
	pthread_mutex_unlock(&lock);
	free(buffer);
}

static void at_exit(void) {
	cupti.flush(1);
}

// gpufl_dump_flush flushes all completed buffers.
GPUFL_EXPORT int gpufl_dump_flush(void) {
	return cupti.flush == NULL ? -1 : cupti.flush(1);
}

// gpufl_dump_push and gpufl_dump_pop put an external id around what this thread launches.
GPUFL_EXPORT int gpufl_dump_push(uint64_t id) {
	return cupti.push == NULL ? -1 : cupti.push(external_custom2, id);
}

GPUFL_EXPORT int gpufl_dump_pop(void) {
	uint64_t id;
	return cupti.pop == NULL ? -1 : cupti.pop(external_custom2, &id);
}

static void *open_cupti(void) {
	const char *path = getenv("GPUFLIGHT_CUPTI");
	if (path != NULL && *path != 0)
		return dlopen(path, RTLD_NOW);
	static const char *const sonames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"};
	for (size_t i = 0; i < sizeof sonames / sizeof *sonames; i++) {
		void *lib = dlopen(sonames[i], RTLD_NOW | RTLD_NOLOAD);
		if (lib != NULL)
			return lib;
	}
	for (size_t i = 0; i < sizeof sonames / sizeof *sonames; i++) {
		void *lib = dlopen(sonames[i], RTLD_NOW);
		if (lib != NULL)
			return lib;
	}
	return dlopen("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so", RTLD_NOW);
}

static void find(void *lib, void *function, const char *name) {
	void *p = dlsym(lib, name);
	if (p == NULL) {
		fprintf(stderr, "dump: no %s\n", name);
		exit(3);
	}
	memcpy(function, &p, sizeof p);
}

GPUFL_EXPORT int InitializeInjection(void) {
	const char *to = getenv("GPUFLIGHT_DUMP_DIR");
	snprintf(dir, sizeof dir, "%s", to == NULL ? "." : to);
	void *lib = open_cupti();
	if (lib == NULL) {
		fprintf(stderr, "dump: no libcupti: %s\n", dlerror());
		return 0;
	}
	find(lib, &cupti.version, "cuptiGetVersion");
	find(lib, &cupti.callbacks, "cuptiActivityRegisterCallbacks");
	find(lib, &cupti.clock, "cuptiActivityRegisterTimestampCallback");
	find(lib, &cupti.enable, "cuptiActivityEnable");
	find(lib, &cupti.flush, "cuptiActivityFlushAll");
	find(lib, &cupti.next, "cuptiActivityGetNextRecord");
	find(lib, &cupti.push, "cuptiActivityPushExternalCorrelationId");
	find(lib, &cupti.pop, "cuptiActivityPopExternalCorrelationId");
	uint32_t version = 0;
	cupti.version(&version);
	int rc = cupti.clock(now);
	if (rc != 0)
		fprintf(stderr, "dump: clock: error %d\n", rc);
	rc = cupti.callbacks(requested, completed);
	if (rc != 0) {
		fprintf(stderr, "dump: callbacks: error %d\n", rc);
		return 0;
	}
	FILE *meta = create("meta.txt", "w");
	if (meta == NULL)
		return 0;
	fprintf(meta, "version %" PRIu32 "\nkinds ", version);
	const char *kinds = getenv("GPUFLIGHT_DUMP_KINDS");
	if (kinds == NULL)
		kinds = "1,2,4,5,10,17,22,38,39,49,50,51";
	const char *comma = "";
	for (char *end; *kinds != 0; kinds = *end == ',' ? end + 1 : end) {
		int kind = (int)strtol(kinds, &end, 10);
		if (end == kinds)
			break;
		rc = cupti.enable(kind);
		if (rc == 0)
			fprintf(meta, "%s%d", comma, kind), comma = ",";
		else
			fprintf(stderr, "dump: kind %d: error %d\n", kind, rc);
	}
	fprintf(meta, "\n");
	fclose(meta);
	atexit(at_exit);
	return 1;
}
