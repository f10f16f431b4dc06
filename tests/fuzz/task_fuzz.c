/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task_fuzz.c - what the plugin reads as root for a task: the files of the job, of any
 * owner, mode, length and contents, and the job's own environment. A task is admitted
 * by a grant that is root's, whole, and this job's; what else is there gives a reason.
 */
#include "spank.h"

#include "../../libvgpu/region.h"
#include "../../spank/plugin/jobenv.c"
#include "../../spank/plugin/taskenv.c"
#undef MOST_BYTES /* late.c has its own */
#include "../../spank/plugin/late.c"

static const char *const names[] = {"SLURM_SHARDS_ON_NODE",  "LD_PRELOAD",
				    "SLURM_JOB_GPUS",        "SLURM_SPANK_VGPU_MEM",
				    "SLURM_SPANK_VGPU_MODE", "SLURM_JOB_USER",
				    "SLURM_RESTART_COUNT",   "CUDA_VISIBLE_DEVICES"};

int vgpu_mount_private(struct vgpu_why *why)
{
	(void)why;
	return 0;
}

int vgpu_mount_file(int fd, const char *target, bool writable, struct vgpu_why *why)
{
	(void)why;
	CHECK(fd >= 0 && target[0] == '/' && writable == !strcmp(target, VGPU_SELF_CACHE));
	return 0;
}

int vgpu_mount_no_devices(const char *folder, const char *begin, struct vgpu_why *why)
{
	(void)folder;
	(void)begin;
	(void)why;
	return 0;
}

int vgpu_seccomp_no_user_namespaces(struct vgpu_why *why)
{
	(void)why;
	return 0;
}

static bool make_grant(struct input *in)
{
	struct vgpu_grant g = {.magic = VGPU_GRANT_MAGIC,
			       .version = VGPU_REGION_VERSION,
			       .size = sizeof g,
			       .job_id = task_job,
			       .uid = task_uid,
			       .ncards = 1};
	size_t size = sizeof g - take(in, 1) % 3;

	for (unsigned n = (unsigned)take(in, 1) % 8; n; n--) {
		size_t at = take(in, 2) % (sizeof g / 4);
		uint32_t value = (uint32_t)take(in, 4);

		memcpy((char *)&g + at * 4, &value, 4);
	}
	fuzz_size(GRANT, (off_t)size);
	fuzz_write(GRANT, &g, size, 0);
	return size == sizeof g && g.magic == VGPU_GRANT_MAGIC && g.size == sizeof g &&
	       g.version == VGPU_REGION_VERSION && g.job_id == task_job && g.uid == task_uid;
}

static void make_text(struct input *in, enum fuzz_name file)
{
	const char *text = take_text(in);
	size_t repeat = 1 + take(in, 1) % 64, size = strlen(text);

	fuzz_size(file, 0);
	for (size_t i = 0; i < repeat && size; i++)
		fuzz_write(file, text, size, (off_t)(i * size));
}

static bool is_roots(enum fuzz_name file)
{
	return fuzz_owner[file].uid == 0 && !(fuzz_owner[file].mode & 022);
}

static void check_admit(const struct vgpu_config *config, bool good_grant)
{
	struct vgpu_member member = {config, task_job, task_uid};
	struct vgpu_why why = {""};
	int known = vgpu_member_admit(&member, &why);
	bool refused = fuzz_here >> REFUSED & 1, granted = fuzz_here >> GRANT & 1;

	CHECK(strnlen(why.text, sizeof why.text) < sizeof why.text);
	if (!(fuzz_here >> FOLDER & 1))
		CHECK(known == 0);
	else if (!is_roots(FOLDER) || refused)
		CHECK(known == -1 && why.text[0]);
	else if (!granted)
		CHECK(known == 0);
	else
		CHECK(known == (good_grant && is_roots(GRANT) ? 1 : -1));
	if (refused && known == -1 && is_roots(FOLDER))
		check_line(why.text, sizeof why.text);
	if (known == 1 && vgpu_member_enter(&member, &why) == 0)
		CHECK((fuzz_here >> CACHE & 1) && (fuzz_here >> PRELOAD & 1) && is_roots(PRELOAD) &&
		      fuzz_owner[CACHE].uid == task_uid);
}

static void check_environment(const struct vgpu_config *config)
{
	static struct environment env;
	struct task task = {.member = {.config = config}};
	struct vgpu_why why = {""};

	vgpu_jobenv_set(NULL, config->run_dir, &why);
	CHECK(read_task(&task, &why) == 0);
	admit(&task, &why);
	if (set_environment(&task, &why))
		CHECK(why.text[0]);
	env.n = 0;
	fill(&env, NULL);
	CHECK(env.n > 4 && env.n <= MOST_VARIABLES);
	for (int i = 0; i < env.n; i++)
		CHECK(strchr(env.list[i], '=') && strlen(env.list[i]) < 512);
	CHECK(strnlen(why.text, sizeof why.text) < sizeof why.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.at = data, .left = size};
	struct vgpu_config config;
	unsigned set;
	bool good;

	vgpu_config_read(&config, 0, NULL);
	task_job = 7;
	task_uid = 1000;
	fuzz_here = ~(unsigned)take(&in, 1);
	set = (unsigned)take(&in, 1);
	for (int i = 0; i < FUZZ_FILES; i++) {
		unsigned other = (unsigned)take(&in, 1);

		fuzz_owner[i].uid = other & 0x80 ? other : i == CACHE ? task_uid : 0;
		fuzz_owner[i].mode = other & 0x7f ? (mode_t)(other & 0x7f) : 0444;
	}
	good = make_grant(&in);
	task_variables = 0;
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		if (set >> i & 1) {
			task_environ[task_variables].name = names[i];
			task_environ[task_variables++].value = take_text(&in);
		}
	}
	make_text(&in, REFUSED);
	make_text(&in, ENVIRONMENT);
	fuzz_size(STATE, 0);
	fuzz_write(STATE, "no-share\n", 9, 0);
	check_admit(&config, good);
	check_environment(&config);
	give_back(&in);
	return 0;
}
