/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach_fuzz.c - how a process finds its limits: any grant and cache file, of any
 * length, any variables, any names of cards; and what it tells of them while others
 * write into the cache. Only a file that is a grant limits, and where there is one,
 * there is a slot to count in.
 */
#include "../../libvgpu/hooks/nvml_processes.c"
#include "../../libvgpu/job/cards.c"
#include "../../libvgpu/job/job.c"
#include "../../libvgpu/job/tell.c"

#include "input.h"

#define MOST_WRITES 48
#define CLEARED_SLOTS 32u

static const char *const variables[] = {"VGPU_GRANT",
					"VGPU_CACHE",
					"CUDA_DEVICE_MEMORY_LIMIT",
					"CUDA_DEVICE_SM_LIMIT",
					"CUDA_DEVICE_MEMORY_LIMIT_1",
					"CUDA_DEVICE_MEMORY_SHARED_CACHE",
					"CUDA_VISIBLE_DEVICES",
					"VGPU_VERBOSE"};

struct vgpu_real vgpu_real;
static struct input in;

/* ---- what the other files of the library would do ---- */

void vgpu_say(const char *text, size_t len)
{
	char line[1025];

	CHECK(len > 0 && len <= 1024 && text[len - 1] == '\n');
	memcpy(line, text, len);
	line[len - 1] = '\0';
	CHECK(strlen(line) == len - 1 && !strchr(line, '\n'));
}

void vgpu_warn(const char *fmt, ...)
{
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
}

void vgpu_signal_hold(struct vgpu_signal_hold *h, int signal)
{
	(void)h, (void)signal;
}

void vgpu_signal_drop(struct vgpu_signal_hold *h, bool raised)
{
	(void)h, (void)raised;
}

void vgpu_need_nvml(void)
{
}

/* ---- the driver ---- */

static nvmlReturn_t uuid_of(nvmlDevice_t device, char *uuid, unsigned size)
{
	(void)device;
	take_bytes(&in, uuid, size);
	uuid[size - 1] = '\0';
	return NVML_SUCCESS;
}

static nvmlReturn_t index_of(nvmlDevice_t device, unsigned *index)
{
	(void)device;
	*index = (unsigned)take(&in, 1);
	return NVML_SUCCESS;
}

static CUresult cuda_uuid(CUuuid *uuid, CUdevice dev)
{
	(void)dev;
	take_bytes(&in, uuid, sizeof *uuid);
	return CUDA_SUCCESS;
}

static nvmlReturn_t processes(nvmlDevice_t device, unsigned *n, nvmlProcessInfo_t *infos)
{
	unsigned have = (unsigned)take(&in, 1);

	(void)device;
	if (have > *n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < have; i++)
		infos[i].pid = (unsigned)take(&in, 1);
	*n = have;
	return NVML_SUCCESS;
}

/* ---- one process ---- */

static void make_files(void)
{
	struct vgpu_grant g = {.magic = VGPU_GRANT_MAGIC,
			       .version = VGPU_REGION_VERSION,
			       .size = sizeof g,
			       .ncards = 2};
	struct vgpu_cache_header h = {0};
	static const struct vgpu_slot none[CLEARED_SLOTS];

	for (unsigned i = 0; i < g.ncards; i++) {
		snprintf(g.card[i].uuid, VGPU_UUID_LEN, "GPU-%u", i);
		g.card[i].mem_limit = 8ull << 30;
		g.card[i].cores = 30;
	}
	vgpu_cache_init(&h, &g);
	fuzz_size(GRANT, (off_t)(sizeof g + take(&in, 1) % 3 * 4096 - take(&in, 1) % 9));
	fuzz_write(GRANT, &g, sizeof g - 8, 0);
	fuzz_size(CACHE, (off_t)(VGPU_CACHE_SIZE - take(&in, 1) % 9));
	fuzz_write(CACHE, &h, sizeof h, VGPU_CACHE_OFFSET);
	fuzz_write(CACHE, none, sizeof none, (off_t)VGPU_SLOTS_OFFSET);
}

static void write_words(bool late)
{
	for (unsigned n = (unsigned)take(&in, 1) % MOST_WRITES; n && in.left; n--) {
		unsigned place = (unsigned)take(&in, 1);
		size_t at = take(&in, 2);
		uint64_t value = take(&in, place & 0x80 ? 1 : 8);

		if (place % 3 == 0 && !late)
			fuzz_write(GRANT, &value, 8,
				   (off_t)(at % (sizeof(struct vgpu_grant) / 8) * 8));
		else if (place % 3 == 1)
			fuzz_write(CACHE, &value, 8,
				   (off_t)(VGPU_CACHE_OFFSET +
					   at % (sizeof(struct vgpu_cache_header) / 8) * 8));
		else
			fuzz_write(CACHE, &value, 8,
				   (off_t)(VGPU_SLOTS_OFFSET +
					   at % (CLEARED_SLOTS * sizeof(struct vgpu_slot) / 8) *
						   8));
	}
}

static void tell(void)
{
	for (int card = 0; card < (int)vgpu_state.ncards; card++) {
		struct line l = {.len = 0};
		uint64_t used = vgpu_mem_used(card);

		add(&l, "vgpu: memory: %s of %s", size_of(take(&in, 8)).text, size_of(used).text);
		add_use(&l, card);
		add_remedy(&l, card, used);
		say(&l);
	}
	vgpu_tell_grant();
}

static void find_cards(void)
{
	nvmlProcessInfo_t *infos;
	unsigned n = (unsigned)take(&in, 1) % 64, room = n;
	int card;

	for (CUdevice dev = -1; dev < 3; dev++) {
		card = vgpu_card_of_device(dev);
		CHECK(card >= -1 && card < VGPU_MAX_CARDS);
		vgpu_not_granted(dev);
	}
	card = vgpu_card_of_nvml(NULL);
	CHECK(card >= -1 && card < (int)vgpu_state.ncards);
	infos = malloc(n * sizeof *infos);
	CHECK(infos || !n);
	if (nvmlDeviceGetComputeRunningProcesses_v3(NULL, &n, infos) == NVML_SUCCESS)
		CHECK(n <= room || !n);
	free(infos);
}

static void forget(void)
{
	fuzz_unmap();
	memset(&vgpu_state, 0, sizeof vgpu_state);
	memset(&vgpu_env_grant, 0, sizeof vgpu_env_grant);
	vgpu_only_card = -1;
	unclaimed = false;
	memset(&trouble, 0, sizeof trouble);
	free((char *)visible);
	visible = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned set, n = 0;

	in = (struct input){.at = data, .left = size};
	vgpu_real.nvmlDeviceGetUUID = uuid_of;
	vgpu_real.nvmlDeviceGetIndex = index_of;
	vgpu_real.cuDeviceGetUuid_v2 = cuda_uuid;
	vgpu_real.nvmlDeviceGetComputeRunningProcesses_v3 = processes;
	set = (unsigned)take(&in, 1);
	fuzz_here = (unsigned)take(&in, 1) & (1u << GRANT | 1u << CACHE);
	fuzz_no_self = take(&in, 1) & 1;
	fuzz_owner[GRANT] = (struct fuzz_owner){0, 0444};
	fuzz_owner[CACHE] = (struct fuzz_owner){geteuid(), 0600};
	for (unsigned i = 0; i < sizeof variables / sizeof *variables; i++) {
		if (set >> i & 1) {
			fuzz_environ[n++] = variables[i];
			fuzz_environ[n++] = take_text(&in);
		}
	}
	fuzz_environ[n] = NULL;
	make_files();
	write_words(false);
	vgpu_tell_settings();
	vgpu_cards_settings();
	find();
	/* What is there and is no grant or cache of a job gives nothing. */
	if (trouble.what)
		CHECK(vgpu_state.grant && !vgpu_state.ncards && !vgpu_state.counted);
	vgpu_tell_grant();
	if (vgpu_state.grant) {
		CHECK(vgpu_state.ncards <= VGPU_MAX_CARDS && vgpu_state.slot);
		CHECK(vgpu_state.counted == (vgpu_state.slot != &no_slot));
		find_cards();
		tell();
		write_words(true);
		tell();
	}
	give_back(&in);
	forget();
	return 0;
}
