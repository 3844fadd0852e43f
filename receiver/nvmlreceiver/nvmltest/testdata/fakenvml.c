/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libnvidia-ml.so.1 with the functions that the nvml receiver calls. FAKENVML names a text
 * file with its values, one "key value" per line. A replaced file is read again. Examples:
 *
 *      count 2                   devices
 *      0.uuid GPU-…              a value of device 0; the key is the quantity
 *      0.temperature !15         an NVML return code in place of a value
 *      0.temperature hang        the call blocks until the line changes
 *      0.all !15                 all calls of device 0
 *      0.mig1.uuid MIG-…         the MIG device in slot 1 of device 0
 *      driver 580.95             the version of the driver
 *      xid.3 0:79                the fourth event: XID 79 on device 0
 *      xid.4 0:79:3              the fifth event, caused by GPU instance 3
 *
 * What has no line is not supported. Some functions are missing on purpose: the receiver must not
 * need them. Layouts are NVML's documented ABI on 64-bit Linux; a test compares the sizes below with
 * those of the Go binding.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

typedef int ret_t;
typedef unsigned long long u64;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, UNKNOWN = 999 };

enum { max_keys = 8192, slots = 16384, max_devices = 64, mig_slots = 7, key_size = 64, value_size = 512 };

struct memory { uint32_t version; u64 total, reserved, free, used; };
struct utilization { uint32_t gpu, memory; };
struct sample { u64 time; union { uint32_t ui; u64 ull; } value; };
struct violation { u64 reference, violation; };
struct field { uint32_t id, scope; int64_t time, latency; uint32_t type, ret; union { uint32_t ui; u64 ull; double d; } value; };
struct process { uint32_t pid; u64 used; uint32_t gi, ci; };
struct process_sample { uint32_t pid; u64 time; uint32_t sm, mem, enc, dec; };
struct event { void *device; u64 type, data; uint32_t gi, ci; };
struct gpm_metric { uint32_t id, ret; double value; const char *names[3]; };
struct gpm_query { uint32_t version, count; void *sample1, *sample2; struct gpm_metric metrics[333]; };
struct gpm_support { uint32_t version, supported; };

_Static_assert(sizeof(struct memory) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct utilization) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(struct sample) == 16, "nvmlSample_t");
_Static_assert(sizeof(struct violation) == 16, "nvmlViolationTime_t");
_Static_assert(sizeof(struct field) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(struct process_sample) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(struct event) == 32, "nvmlEventData_t");
_Static_assert(sizeof(struct gpm_metric) == 40, "nvmlGpmMetric_t");
_Static_assert(sizeof(struct gpm_query) == 13344, "nvmlGpmMetricsGet_t");
_Static_assert(sizeof(struct gpm_support) == 8, "nvmlGpmSupport_t");

struct device { char prefix[16]; int index; struct device *parent; };

static struct device devices[max_devices], migs[max_devices][mig_slots];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry { char key[key_size], value[value_size]; } entries[max_keys];
static int table[slots], keys;
static struct stat seen;
static int initialised, delivered;
static u64 epoch;

static unsigned hash(const char *s)
{
	unsigned h = 2166136261u;
	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 16777619u;
	return h % slots;
}

static struct entry *find(const char *key)
{
	for (unsigned i = hash(key); table[i]; i = (i + 1) % slots)
		if (!strcmp(entries[table[i] - 1].key, key))
			return &entries[table[i] - 1];
	return NULL;
}

/* reload reads the file if it was replaced. The caller holds the lock. */
static void reload(void)
{
	const char *path = getenv("FAKENVML");
	struct stat now;
	if (!path || stat(path, &now))
		return;
	if (now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_mtim.tv_sec == seen.st_mtim.tv_sec)
		return;
	FILE *f = fopen(path, "r");
	if (!f)
		return;
	seen = now;
	keys = 0;
	memset(table, 0, sizeof table);
	struct entry e;
	char line[key_size + value_size + 8];
	while (keys < max_keys && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%63s %511[^\n]", e.key, e.value) != 2)
			continue;
		entries[keys++] = e;
		unsigned i = hash(e.key);
		while (table[i])
			i = (i + 1) % slots;
		table[i] = keys;
	}
	fclose(f);
	if (!find("xid.0"))
		delivered = 0; /* a new list of events */
}

static void nap(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
	nanosleep(&t, NULL);
}

static u64 now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000;
}

/* text copies the value of a key; hanging and errors are done here. */
static ret_t text(const char *key, char out[value_size])
{
	for (;;) {
		pthread_mutex_lock(&lock);
		reload();
		struct entry *e = find(key);
		if (e)
			memcpy(out, e->value, value_size);
		pthread_mutex_unlock(&lock);
		if (!e)
			return UNSUPPORTED;
		if (strcmp(out, "hang"))
			return out[0] == '!' ? atoi(out + 1) : SUCCESS;
		nap(5);
	}
}

static u64 global(const char *key, u64 otherwise)
{
	char v[value_size];
	return text(key, v) == SUCCESS ? strtoull(v, NULL, 0) : otherwise;
}

/* quantity copies a value of a device. */
static ret_t quantity(const struct device *d, const char *name, char out[value_size])
{
	char key[key_size];
	if (!d)
		return INVALID;
	if (!initialised || epoch != global("epoch", 0))
		return UNINITIALIZED;
	snprintf(key, sizeof key, "%s.all", d->prefix);
	ret_t r = text(key, out);
	if (r != SUCCESS && r != UNSUPPORTED)
		return r;
	snprintf(key, sizeof key, "%s.%s", d->prefix, name);
	return text(key, out);
}

static ret_t number(const struct device *d, const char *name, u64 *out)
{
	char v[value_size];
	ret_t r = quantity(d, name, v);
	if (r == SUCCESS)
		*out = strtoull(v, NULL, 0);
	return r;
}

static ret_t number32(const struct device *d, const char *name, uint32_t *out)
{
	u64 v = 0;
	ret_t r = number(d, name, &v);
	if (r == SUCCESS)
		*out = (uint32_t)v;
	return r;
}

/* numbered gives the value of a quantity with kinds: name.kind. */
static ret_t numbered(const struct device *d, const char *name, unsigned kind, u64 *out)
{
	char key[key_size];
	snprintf(key, sizeof key, "%s.%u", name, kind);
	return number(d, key, out);
}

static ret_t numbered32(const struct device *d, const char *name, unsigned kind, uint32_t *out)
{
	u64 v = 0;
	ret_t r = numbered(d, name, kind, &v);
	if (r == SUCCESS)
		*out = (uint32_t)v;
	return r;
}

/* part cuts the next number of a list "a:b,c:d". */
static u64 part(char **s)
{
	u64 v = strtoull(*s, s, 0);
	if (**s == ':' || **s == ',')
		(*s)++;
	return v;
}

EXPORT ret_t nvmlInit_v2(void)
{
	char v[value_size];
	ret_t r = text("init", v);
	if (r != SUCCESS && r != UNSUPPORTED)
		return r;
	epoch = global("epoch", 0);
	for (int i = 0; i < max_devices; i++) {
		devices[i].index = i;
		snprintf(devices[i].prefix, sizeof devices[i].prefix, "%d", i);
		for (int k = 0; k < mig_slots; k++) {
			migs[i][k].parent = &devices[i];
			snprintf(migs[i][k].prefix, sizeof migs[i][k].prefix, "%d.mig%d", i, k);
		}
	}
	initialised++;
	return SUCCESS;
}

EXPORT ret_t nvmlShutdown(void)
{
	if (!initialised)
		return UNINITIALIZED;
	initialised--;
	return SUCCESS;
}

EXPORT const char *nvmlErrorString(ret_t r)
{
	return r == SUCCESS ? "success" : "an error of the stand-in";
}

EXPORT ret_t nvmlDeviceGetCount_v2(uint32_t *count)
{
	if (!initialised || epoch != global("epoch", 0))
		return UNINITIALIZED;
	*count = (uint32_t)global("count", 0);
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetHandleByIndex_v2(uint32_t i, struct device **out)
{
	if (i >= max_devices || i >= global("count", 0))
		return INVALID;
	char v[value_size];
	ret_t r = quantity(&devices[i], "handle", v);
	if (r != SUCCESS && r != UNSUPPORTED)
		return r;
	*out = &devices[i];
	return SUCCESS;
}

static ret_t string(const struct device *d, const char *name, char *out, uint32_t size)
{
	char v[value_size];
	ret_t r = quantity(d, name, v);
	if (r == SUCCESS)
		snprintf(out, size, "%s", v);
	return r;
}

EXPORT ret_t nvmlDeviceGetUUID(struct device *d, char *out, uint32_t size) { return string(d, "uuid", out, size); }
EXPORT ret_t nvmlDeviceGetName(struct device *d, char *out, uint32_t size) { return string(d, "name", out, size); }

EXPORT ret_t nvmlDeviceGetSerial(struct device *d, char *out, uint32_t size) { return string(d, "serial", out, size); }
EXPORT ret_t nvmlDeviceGetMinorNumber(struct device *d, uint32_t *out) { return number32(d, "minor", out); }

EXPORT ret_t nvmlSystemGetDriverVersion(char *out, uint32_t size)
{
	char v[value_size];
	ret_t r = text("driver", v);
	if (r == SUCCESS)
		snprintf(out, size, "%s", v);
	return r;
}

EXPORT ret_t nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory *m)
{
	char v[value_size], *s = v;
	ret_t r = quantity(d, "memory", v); /* total:reserved:used */
	if (r != SUCCESS)
		return r;
	m->total = part(&s);
	m->reserved = part(&s);
	m->used = part(&s);
	m->free = m->total - m->reserved - m->used;
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetUtilizationRates(struct device *d, struct utilization *u)
{
	char v[value_size], *s = v;
	ret_t r = quantity(d, "utilization", v); /* gpu:memory */
	if (r != SUCCESS)
		return r;
	u->gpu = (uint32_t)part(&s);
	u->memory = (uint32_t)part(&s);
	return SUCCESS;
}

/* samples.KIND is "auto:VALUE", one sample every 200 ms of the last 14 s, or "time:value,…" in µs. */
EXPORT ret_t nvmlDeviceGetSamples(struct device *d, int kind, u64 after, int *type, uint32_t *count, struct sample *out)
{
	char key[key_size], v[value_size], *s = v;
	snprintf(key, sizeof key, "samples.%d", kind);
	ret_t r = quantity(d, key, v);
	if (r != SUCCESS)
		return r;
	*type = 1;
	uint32_t n = 0, room = out ? *count : 0;
	if (!strncmp(v, "auto:", 5)) {
		uint32_t value = (uint32_t)strtoul(v + 5, NULL, 0);
		u64 last = now_us() / 200000 * 200000;
		for (u64 t = last - 70 * 200000; t <= last; t += 200000) {
			if (t <= after)
				continue;
			if (out && n < room)
				out[n] = (struct sample){ .time = t, .value.ui = value };
			n++;
		}
	} else {
		while (*s) {
			u64 t = part(&s);
			uint32_t value = (uint32_t)part(&s);
			if (t <= after)
				continue;
			if (out && n < room)
				out[n] = (struct sample){ .time = t, .value.ui = value };
			n++;
		}
	}
	if (out && n > room)
		n = room;
	*count = n;
	return n ? SUCCESS : NOT_FOUND;
}

static ret_t coder(struct device *d, const char *name, uint32_t *value, uint32_t *period)
{
	*period = 167000;
	return number32(d, name, value);
}

EXPORT ret_t nvmlDeviceGetEncoderUtilization(struct device *d, uint32_t *v, uint32_t *p) { return coder(d, "encoder", v, p); }
EXPORT ret_t nvmlDeviceGetDecoderUtilization(struct device *d, uint32_t *v, uint32_t *p) { return coder(d, "decoder", v, p); }
EXPORT ret_t nvmlDeviceGetTotalEnergyConsumption(struct device *d, u64 *mj) { return number(d, "energy", mj); }
EXPORT ret_t nvmlDeviceGetPowerUsage(struct device *d, uint32_t *mw) { return number32(d, "power", mw); }
EXPORT ret_t nvmlDeviceGetEnforcedPowerLimit(struct device *d, uint32_t *mw) { return number32(d, "limit.enforced", mw); }
EXPORT ret_t nvmlDeviceGetPowerManagementDefaultLimit(struct device *d, uint32_t *mw) { return number32(d, "limit.default", mw); }

EXPORT ret_t nvmlDeviceGetPowerManagementLimitConstraints(struct device *d, uint32_t *low, uint32_t *high)
{
	ret_t r = number32(d, "limit.min", low);
	return r == SUCCESS ? number32(d, "limit.max", high) : r;
}

EXPORT ret_t nvmlDeviceGetTemperature(struct device *d, int sensor, uint32_t *c) { return sensor ? INVALID : number32(d, "temperature", c); }
EXPORT ret_t nvmlDeviceGetTemperatureThreshold(struct device *d, int kind, uint32_t *c) { return numbered32(d, "threshold", (unsigned)kind, c); }
EXPORT ret_t nvmlDeviceGetNumFans(struct device *d, uint32_t *n) { return number32(d, "fans", n); }
EXPORT ret_t nvmlDeviceGetFanSpeed_v2(struct device *d, uint32_t fan, uint32_t *percent) { return numbered32(d, "fan", fan, percent); }
EXPORT ret_t nvmlDeviceGetClockInfo(struct device *d, int kind, uint32_t *mhz) { return numbered32(d, "clock", (unsigned)kind, mhz); }
EXPORT ret_t nvmlDeviceGetMaxClockInfo(struct device *d, int kind, uint32_t *mhz) { return numbered32(d, "maxclock", (unsigned)kind, mhz); }
EXPORT ret_t nvmlDeviceGetCurrentClocksEventReasons(struct device *d, u64 *mask) { return number(d, "reasons", mask); }

EXPORT ret_t nvmlDeviceGetViolationStatus(struct device *d, int policy, struct violation *v)
{
	v->reference = now_us();
	return numbered(d, "violation", (unsigned)policy, &v->violation);
}

/* field.ID, or field.ID.SCOPE where the scope is not 0 (all: every link), is "i:" or "l:" for 32 or 64
 * bits and a value. */
EXPORT ret_t nvmlDeviceGetFieldValues(struct device *d, int count, struct field *f)
{
	char v[value_size], key[key_size];
	ret_t r = quantity(d, "fields", v); /* the call itself: "fields 1" */
	if (r != SUCCESS)
		return r;
	for (int i = 0; i < count; i++) {
		if (f[i].scope == UINT32_MAX)
			snprintf(key, sizeof key, "field.%u.all", f[i].id);
		else if (f[i].scope)
			snprintf(key, sizeof key, "field.%u.%u", f[i].id, f[i].scope);
		else
			snprintf(key, sizeof key, "field.%u", f[i].id);
		f[i].ret = (uint32_t)quantity(d, key, v);
		if (f[i].ret != SUCCESS)
			continue;
		f[i].time = (int64_t)now_us();
		if (v[0] == 'i') {
			f[i].type = 1;
			f[i].value.ui = (uint32_t)strtoull(v + 2, NULL, 0);
		} else {
			f[i].type = 3;
			f[i].value.ull = strtoull(v + 2, NULL, 0);
		}
	}
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetTotalEccErrors(struct device *d, int kind, int counter, u64 *n) { return counter ? INVALID : numbered(d, "ecc", (unsigned)kind, n); }
EXPORT ret_t nvmlDeviceGetPcieReplayCounter(struct device *d, uint32_t *n) { return number32(d, "replay", n); }

EXPORT ret_t nvmlDeviceGetRemappedRows(struct device *d, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending, uint32_t *failed)
{
	char v[value_size], *s = v;
	ret_t r = quantity(d, "remapped", v); /* corrected:uncorrected:pending:failed */
	if (r != SUCCESS)
		return r;
	*corrected = (uint32_t)part(&s);
	*uncorrected = (uint32_t)part(&s);
	*pending = (uint32_t)part(&s);
	*failed = (uint32_t)part(&s);
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetRetiredPages(struct device *d, int cause, uint32_t *count, u64 *pages)
{
	u64 n = 0;
	ret_t r = numbered(d, "retired", (unsigned)cause, &n);
	if (r != SUCCESS)
		return r;
	if (*count < n) {
		*count = (uint32_t)n;
		return TOO_SMALL;
	}
	*count = (uint32_t)n;
	for (u64 i = 0; i < n; i++)
		pages[i] = i << 16;
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetRetiredPagesPendingStatus(struct device *d, int *pending)
{
	u64 v = 0;
	ret_t r = number(d, "retiring", &v);
	if (r == SUCCESS)
		*pending = (int)v;
	return r;
}

/* A list of processes is "pid:bytes,…", "none" for an empty one. */
static ret_t processes(struct device *d, const char *name, uint32_t *count, struct process *out)
{
	char v[value_size], *s = v;
	ret_t r = quantity(d, name, v);
	if (r != SUCCESS)
		return r;
	if (!strcmp(v, "none"))
		v[0] = 0;
	uint32_t n = 0;
	while (*s) {
		struct process p = { .pid = (uint32_t)part(&s), .gi = UINT32_MAX, .ci = UINT32_MAX };
		p.used = part(&s);
		if (n < *count)
			out[n] = p;
		n++;
	}
	r = n > *count ? TOO_SMALL : SUCCESS;
	*count = n;
	return r;
}

EXPORT ret_t nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, uint32_t *n, struct process *p) { return processes(d, "compute", n, p); }
EXPORT ret_t nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *d, uint32_t *n, struct process *p) { return processes(d, "graphics", n, p); }
EXPORT ret_t nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *d, uint32_t *n, struct process *p) { return processes(d, "mps", n, p); }

/* processutil is "time:pid:sm,…" in µs; time 0 is now. */
EXPORT ret_t nvmlDeviceGetProcessUtilization(struct device *d, struct process_sample *out, uint32_t *count, u64 after)
{
	char v[value_size], *s = v;
	ret_t r = quantity(d, "processutil", v);
	if (r != SUCCESS)
		return r;
	uint32_t n = 0, room = out ? *count : 0;
	while (*s) {
		struct process_sample p = { .time = part(&s) };
		if (!p.time)
			p.time = now_us();
		p.pid = (uint32_t)part(&s);
		p.sm = (uint32_t)part(&s);
		if (p.time <= after)
			continue;
		if (n < room)
			out[n] = p;
		n++;
	}
	*count = n;
	if (!n)
		return NOT_FOUND;
	return n > room ? TOO_SMALL : SUCCESS;
}

EXPORT ret_t nvmlGpmQueryDeviceSupport(struct device *d, struct gpm_support *s)
{
	u64 v = 0;
	ret_t r = number(d, "gpm", &v); /* gpm 1 */
	s->supported = r == SUCCESS && v;
	return r == UNSUPPORTED ? SUCCESS : r;
}

struct gpm_sample { struct device *device; u64 time; };

/* The driver's GPM calls must not run side by side: it ends in a segmentation fault, now and then.
 * Here it ends at once. */
static int gpm_calls;

static void gpm_enter(void)
{
	if (__atomic_fetch_add(&gpm_calls, 1, __ATOMIC_SEQ_CST) != 0) {
		fputs("fakenvml: two GPM calls at once\n", stderr);
		abort();
	}
	nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static void gpm_leave(void)
{
	__atomic_fetch_sub(&gpm_calls, 1, __ATOMIC_SEQ_CST);
}

EXPORT ret_t nvmlGpmSampleAlloc(void **out)
{
	*out = calloc(1, sizeof(struct gpm_sample));
	return *out ? SUCCESS : UNKNOWN;
}

EXPORT ret_t nvmlGpmSampleFree(void *s)
{
	free(s);
	return SUCCESS;
}

static ret_t gpm_sample(struct device *d, struct gpm_sample *s)
{
	u64 v = 0;
	gpm_enter();
	ret_t r = number(d, "gpm", &v);
	gpm_leave();
	if (r != SUCCESS)
		return r;
	s->device = d;
	s->time = now_us();
	return SUCCESS;
}

EXPORT ret_t nvmlGpmSampleGet(struct device *d, void *sample)
{
	return gpm_sample(d, sample);
}

EXPORT ret_t nvmlGpmMigSampleGet(struct device *d, uint32_t instance, void *sample)
{
	for (int i = 0; d && i < mig_slots; i++) {
		uint32_t gi = 0;
		if (number32(&migs[d->index][i], "gi", &gi) == SUCCESS && gi == instance)
			return gpm_sample(&migs[d->index][i], sample);
	}
	return INVALID;
}

EXPORT ret_t nvmlGpmMetricsGet(struct gpm_query *q)
{
	struct gpm_sample *a = q->sample1, *b = q->sample2;
	if (!a || !b || a->device != b->device || !a->device || a->time > b->time || q->count > 333)
		return INVALID;
	gpm_enter();
	for (uint32_t i = 0; i < q->count; i++) {
		char v[value_size], key[key_size];
		snprintf(key, sizeof key, "gpm.%u", q->metrics[i].id);
		q->metrics[i].ret = (uint32_t)quantity(b->device, key, v);
		if (q->metrics[i].ret == SUCCESS)
			q->metrics[i].value = strtod(v, NULL);
	}
	gpm_leave();
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetMigMode(struct device *d, uint32_t *now, uint32_t *pending)
{
	ret_t r = number32(d, "mig", now);
	*pending = *now;
	return r;
}

EXPORT ret_t nvmlDeviceGetMaxMigDeviceCount(struct device *d, uint32_t *n)
{
	uint32_t mode = 0;
	*n = mig_slots;
	return number32(d, "mig", &mode);
}

EXPORT ret_t nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, uint32_t i, struct device **out)
{
	char v[value_size];
	if (!d || i >= mig_slots)
		return INVALID;
	if (quantity(&migs[d->index][i], "uuid", v) != SUCCESS)
		return NOT_FOUND;
	*out = &migs[d->index][i];
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetGpuInstanceId(struct device *d, uint32_t *id) { return number32(d, "gi", id); }

struct event_set { unsigned char registered[max_devices]; };

EXPORT ret_t nvmlEventSetCreate(struct event_set **out)
{
	*out = calloc(1, sizeof **out);
	return *out ? SUCCESS : UNKNOWN;
}

EXPORT ret_t nvmlEventSetFree(struct event_set *s)
{
	free(s);
	return SUCCESS;
}

EXPORT ret_t nvmlDeviceGetSupportedEventTypes(struct device *d, u64 *types) { return number(d, "events", types); }

EXPORT ret_t nvmlDeviceRegisterEvents(struct device *d, u64 types, struct event_set *s)
{
	u64 supported = 0;
	ret_t r = number(d, "events", &supported);
	if (r != SUCCESS)
		return r;
	if (types & ~supported)
		return UNSUPPORTED;
	s->registered[d->index] = 1;
	return SUCCESS;
}

EXPORT ret_t nvmlEventSetWait_v2(struct event_set *s, struct event *e, uint32_t timeout_ms)
{
	u64 end = now_us() + (u64)timeout_ms * 1000;
	for (;;) {
		char key[key_size], v[value_size], *p = v;
		snprintf(key, sizeof key, "xid.%d", delivered);
		ret_t r = text(key, v);
		if (r == SUCCESS) {
			delivered++;
			u64 d = part(&p);
			if (d < max_devices && s->registered[d]) {
				*e = (struct event){ .device = &devices[d], .type = 8, .data = part(&p), .gi = UINT32_MAX, .ci = UINT32_MAX };
				if (*p)
					e->gi = (uint32_t)part(&p);
				return SUCCESS;
			}
			continue;
		}
		if (r != UNSUPPORTED)
			return r;
		if (now_us() >= end)
			return TIMEOUT;
		nap(5);
	}
}
