/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - what the files of the SPANK plugin share, grouped by the file
 * that defines it.
 *
 * Words. Client: sbatch, salloc or srun, running as the user. Task: the forked
 * child of slurmstepd that is about to become the user's program. Job
 * directory: <run_dir>/jobs/<job id>, written by gresd (see libvgpu/region.h).
 *
 * Rule of the plugin: nothing but a task may fail on a node. Slurm drains a
 * node when init, init_post_opt or user_init fail in slurmstepd.
 */
#ifndef VGPU_PLUGIN_H
#define VGPU_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* One line for people: says what was found, what was expected. */
struct vgpu_why {
	char text[512];
};

/* config.c: arguments of the line in plugstack.conf */
enum vgpu_enforce {
	VGPU_ENFORCE_NAMESPACE, /* private mounts: the job cannot undo them */
	VGPU_ENFORCE_PRELOAD,   /* LD_PRELOAD only: works for programs that cooperate */
	VGPU_ENFORCE_OFF,       /* options and refusals only; TaskProlog does the rest */
};

struct vgpu_config {
	const char *run_dir;
	const char *library;
	const char *prolog; /* vgpu-prolog, for a job whose Prolog slurmd has left out */
	enum vgpu_enforce enforce;
	bool seccomp;
	struct vgpu_why wrong; /* empty, or why the arguments cannot be used */
};

void vgpu_config_read(struct vgpu_config *config, int argc, char **argv);

/* why.c */
int vgpu_because(struct vgpu_why *why, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void vgpu_printable(char *out, size_t size, const char *text);
/* Reads a file to its end, or as much as there is room for, and closes it. Returns the length of the
 * text, or -1. */
ssize_t vgpu_read_text(int fd, char *text, size_t size);

/* syntax.c: the form of option values; pure */
bool vgpu_is_memory(const char *text);
bool vgpu_is_percent(const char *text);
bool vgpu_is_cards(const char *text);
bool vgpu_is_mode(const char *text);
bool vgpu_is_priority(const char *text);
bool vgpu_is_policy(const char *text);
bool vgpu_is_engine(const char *text);

/* options.c */
struct spank_handle;
int vgpu_options_register(struct spank_handle *spank);
void vgpu_options_forget_inherited(void);
void vgpu_options_keep_job(void);
int vgpu_options_publish(struct spank_handle *spank);

/* jobdir.c: opens what gresd wrote and believes nothing unchecked. Each
 * returns a descriptor, -ENOENT where there is no such file, or another
 * negative value with *why set. */
int vgpu_jobdir_open(const char *run_dir, uint32_t job, struct vgpu_why *why);
int vgpu_jobdir_grant(int dir, uint32_t job, uid_t uid, struct vgpu_why *why);
int vgpu_jobdir_cache(int dir, uid_t uid, struct vgpu_why *why);
int vgpu_jobdir_of_node(const char *run_dir, const char *name, struct vgpu_why *why);
int vgpu_jobdir_environment(int dir, struct vgpu_why *why);
bool vgpu_jobdir_refused(int dir, struct vgpu_why *why);

/* jobstate.c. The file is there. */
#define VGPU_GRESD_PLACES "ask-gresd" /* it chooses the cards */
#define VGPU_LOSES_SHARDS \
	"loses-shards" /* slurmctld can start a job without the shards that it requests */
bool vgpu_is_there(const char *run_dir, const char *name);
/* The Prolog has left this state of the job: spank/prolog/state.go. */
#define VGPU_NO_SHARE "no-share"
#define VGPU_UNDECIDED "undecided" /* it is unknown whether the job has a share */
bool vgpu_job_is(const char *run_dir, uint32_t job, const char *state);

/* late.c: makes up for a Prolog that did not run. needs_prolog: a job without
 * shards can have a share, too. prolog: 0 when gresd has decided on the job, 1 when the
 * job's share is unknown and the task must see no card, -1 with *why set when the
 * task must not run. */
bool vgpu_needs_prolog(const char *run_dir, uint32_t job);
int vgpu_late_prolog(struct spank_handle *spank, const char *program, struct vgpu_why *why);

/* mount.c */
#define VGPU_SELF_GRANT "/run/vgpu/self/grant"
#define VGPU_SELF_CACHE "/run/vgpu/self/cache"
#define VGPU_PRELOAD "/etc/ld.so.preload"
int vgpu_mount_private(struct vgpu_why *why);
int vgpu_mount_file(int fd, const char *target, bool writable, struct vgpu_why *why);
int vgpu_mount_no_devices(const char *folder, const char *begin, struct vgpu_why *why);

/* enter.c: a process that shares in what was granted to a job */
struct vgpu_member {
	const struct vgpu_config *config;
	uint32_t job;
	uid_t uid;
};

int vgpu_member_admit(const struct vgpu_member *member, struct vgpu_why *why);
int vgpu_member_enter(const struct vgpu_member *member, struct vgpu_why *why);
int vgpu_member_hide_cards(struct vgpu_why *why);

/* seccomp.c */
int vgpu_seccomp_no_user_namespaces(struct vgpu_why *why);

/* taskenv.c */
void vgpu_task_prepare(struct spank_handle *spank, const struct vgpu_config *config);
void vgpu_task_environment(struct spank_handle *spank, const struct vgpu_config *config);

/* whole.c: the names of a job's whole cards. names: lines INDEX UUID; indexes and visible: as
 * Slurm has told the task. False: out has nothing, and what Slurm has told stays. */
bool vgpu_whole_names(const char *names, const char *indexes, const char *visible, char *out,
		      size_t size);

/* jobenv.c */
int vgpu_setenv(struct spank_handle *spank, const char *name, const char *value,
		struct vgpu_why *why);
int vgpu_jobenv_set(struct spank_handle *spank, const char *run_dir, struct vgpu_why *why);

#endif
