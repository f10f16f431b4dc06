/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin does without slurm. Runs as root of a user and mount
 * namespace of its own (see Makefile). Usage: plugin_test testdata/options.txt
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libvgpu/region.h"
#include "plugin.h"

static int failures;

#define CHECK(condition, ...)                                                           \
	do {                                                                            \
		if (!(condition)) {                                                     \
			failures++;                                                     \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
			fprintf(stderr, __VA_ARGS__);                                   \
			fputc('\n', stderr);                                            \
		}                                                                       \
	} while (0)

/* ---- syntax.c ---- */

static const struct {
	const char *name;
	bool (*valid)(const char *text);
} forms[] = {
	{"mem", vgpu_is_memory},    {"cores", vgpu_is_percent},     {"cards", vgpu_is_cards},
	{"mode", vgpu_is_mode},     {"priority", vgpu_is_priority}, {"policy", vgpu_is_policy},
	{"engine", vgpu_is_engine},
};

static void check_form(const char *name, char *value, const char *want)
{
	char *p;
	size_t i;

	for (p = value; *p; p++)
		*p = *p == '_' ? ' ' : *p;
	for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (!strcmp(forms[i].name, name)) {
			CHECK(forms[i].valid(value) == !strcmp(want, "ok"), "%s \"%s\": want %s",
			      name, value, want);
			return;
		}
	}
	CHECK(false, "unknown option %s", name);
}

static void test_forms(const char *path)
{
	FILE *table = fopen(path, "r");
	char line[256];
	int lines = 0;

	if (!table) {
		perror(path);
		exit(2);
	}
	while (fgets(line, sizeof(line), table)) {
		char *rest = line;
		char *name = strsep(&rest, "\t");
		char *value = strsep(&rest, "\t");

		if (line[0] == '#')
			continue;
		rest[strcspn(rest, "\n")] = '\0';
		check_form(name, value, rest);
		lines++;
	}
	fclose(table);
	CHECK(lines >= 80, "only %d lines in %s", lines, path);
}

static void test_printable(void)
{
	char out[8];

	vgpu_printable(out, sizeof(out), "a\tb\nc");
	CHECK(!strcmp(out, "a?b"), "\"%s\"", out);
	vgpu_printable(out, sizeof(out), "0123456789");
	CHECK(!strcmp(out, "0123456"), "\"%s\"", out);
}

/* ---- config.c ---- */

static struct vgpu_config read_config(const char *argument)
{
	struct vgpu_config config;
	char *argv[] = {(char *)argument};

	vgpu_config_read(&config, argument ? 1 : 0, argv);
	return config;
}

static void test_config(void)
{
	static const char *const wrong[] = {"run_dir=run",   "library=",  "enforce=all",
					    "enforce=",      "seccomp=2", "seccomp=yes",
					    "run_dirs=/run", "seccomp"};
	struct vgpu_config config = read_config(NULL);
	size_t i;

	CHECK(!strcmp(config.run_dir, "/run/vgpu"), "%s", config.run_dir);
	CHECK(config.enforce == VGPU_ENFORCE_NAMESPACE && !config.seccomp, "defaults");
	CHECK(!strcmp(read_config("library=/l.so").library, "/l.so"), "library");
	CHECK(read_config("enforce=preload").enforce == VGPU_ENFORCE_PRELOAD, "preload");
	CHECK(read_config("enforce=off").enforce == VGPU_ENFORCE_OFF, "off");
	CHECK(read_config("seccomp=1").seccomp, "seccomp");
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK(read_config(wrong[i]).wrong.text[0], "%s was taken", wrong[i]);
}

/* ---- jobdir.c ---- */

#define JOB 7
static char run_dir[] = "/tmp/vgpu-plugin-test-XXXXXX";

static void path_of(char *path, size_t size, const char *name)
{
	snprintf(path, size, "%s/jobs/%d/%s", run_dir, JOB, name);
}

static void write_file(const char *path, const void *bytes, size_t size, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);

	if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || fchmod(fd, mode)) {
		perror(path);
		exit(2);
	}
	close(fd);
}

static struct vgpu_grant good_grant(void)
{
	return (struct vgpu_grant){.magic = VGPU_GRANT_MAGIC,
				   .version = VGPU_REGION_VERSION,
				   .size = sizeof(struct vgpu_grant),
				   .job_id = JOB,
				   .uid = 0};
}

static void write_grant(struct vgpu_grant grant)
{
	char path[256];

	path_of(path, sizeof(path), "grant");
	unlink(path);
	write_file(path, &grant, sizeof(grant), 0444);
}

/* The grant as the plugin sees it: 0 when it is good, else why says more. */
static int try_grant(uid_t uid, struct vgpu_why *why)
{
	int dir = vgpu_jobdir_open(run_dir, JOB, why), fd;

	if (dir < 0)
		return dir;
	fd = vgpu_jobdir_grant(dir, JOB, uid, why);
	close(dir);
	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

static void expect_refusal(const char *part)
{
	struct vgpu_why why = {""};
	int got = try_grant(0, &why);

	CHECK(got == -1 && strstr(why.text, part), "got %d \"%s\", want \"%s\"", got, why.text,
	      part);
}

static void test_grant(void)
{
	struct vgpu_grant grant = good_grant();
	struct vgpu_why why = {""};
	char path[256], other[256];

	CHECK(try_grant(0, &why) == -ENOENT, "no job directory: %s", why.text);
	snprintf(path, sizeof(path), "%s/jobs", run_dir);
	mkdir(path, 0711);
	path_of(path, sizeof(path), "");
	mkdir(path, 0700);
	CHECK(try_grant(0, &why) == -ENOENT, "no grant: %s", why.text);

	write_grant(grant);
	CHECK(try_grant(0, &why) == 0, "%s", why.text);
	CHECK(try_grant(33, &why) == -1 && strstr(why.text, "uid 33"), "%s", why.text);
	grant.job_id = JOB + 1;
	write_grant(grant);
	expect_refusal("made for job 8");
	grant = good_grant();
	grant.version++;
	write_grant(grant);
	expect_refusal("one release");
	grant = good_grant();
	grant.magic = 0;
	write_grant(grant);
	expect_refusal("not a grant");

	path_of(path, sizeof(path), "grant");
	unlink(path);
	write_file(path, "short", 5, 0444);
	expect_refusal("5 bytes");
	write_grant(good_grant());
	chmod(path, 0664);
	expect_refusal("only root can write");
	path_of(other, sizeof(other), "real");
	rename(path, other);
	symlink("real", path);
	expect_refusal("open");
	unlink(path);
	mkfifo(path, 0444);
	expect_refusal("not a regular file");
	unlink(path);
	write_grant(good_grant());
	path_of(path, sizeof(path), "");
	chmod(path, 0777);
	expect_refusal("only root can write");
	chmod(path, 0750);
	CHECK(try_grant(0, &why) == 0, "a mask of r-x, as an ACL leaves it: %s", why.text);
}

static void test_refused(void)
{
	struct vgpu_why why = {""};
	char path[256];
	int dir = vgpu_jobdir_open(run_dir, JOB, &why);

	path_of(path, sizeof(path), "refused");
	CHECK(!vgpu_jobdir_refused(dir, &why), "%s", why.text);
	write_file(path, "vgpu: no room\nforged line\n", 26, 0444);
	CHECK(vgpu_jobdir_refused(dir, &why) && !strcmp(why.text, "vgpu: no room"), "%s", why.text);
	write_file(path, "", 0, 0444);
	CHECK(vgpu_jobdir_refused(dir, &why) && strstr(why.text, "without a reason"), "%s",
	      why.text);
	unlink(path);
	close(dir);
}

static void test_cache(void)
{
	struct vgpu_why why = {""};
	char path[256];
	int dir = vgpu_jobdir_open(run_dir, JOB, &why), fd;

	path_of(path, sizeof(path), "cache");
	CHECK(vgpu_jobdir_cache(dir, 0, &why) == -ENOENT, "%s", why.text);
	write_file(path, "cache", 5, 0600);
	fd = vgpu_jobdir_cache(dir, 0, &why);
	CHECK(fd >= 0, "%s", why.text);
	close(fd);
	CHECK(vgpu_jobdir_cache(dir, 33, &why) == -1 && strstr(why.text, "owner 0"), "%s",
	      why.text);
	close(dir);
}

static void test_environment(void)
{
	struct vgpu_why why = {""};
	char path[256];
	int dir = vgpu_jobdir_open(run_dir, JOB, &why), fd;

	path_of(path, sizeof(path), "environment");
	CHECK(vgpu_jobdir_environment(dir, &why) == -ENOENT, "%s", why.text);
	write_file(path, "A=1\n", 4, 0444);
	fd = vgpu_jobdir_environment(dir, &why);
	CHECK(fd >= 0, "%s", why.text);
	close(fd);
	chmod(path, 0666);
	CHECK(vgpu_jobdir_environment(dir, &why) == -1 && strstr(why.text, "only root"), "%s",
	      why.text);
	unlink(path);
	close(dir);
}

/* ---- whole.c ---- */

static void test_whole(void)
{
	static const char names[] = "0 MIG-a\n1 MIG-b\n10 GPU-c\n";
	static const struct {
		const char *indexes, *visible, *want; /* NULL: Slurm's word stays */
	} cases[] = {
		{"1", "0", "MIG-b"},       {"10", "2", "GPU-c"}, {"0,10", "0,1", "MIG-a,GPU-c"},
		{"1", "MIG-b", NULL},      {"2", "0", NULL},     {"0,1", "0", NULL},
		{"", "0", NULL},           {"1,", "0,1", NULL},  {"x", "0", NULL},
		{"1", "NoDevFiles", NULL}, {"1 ", "0", NULL},
	};
	struct vgpu_why why = {""};
	char out[64], path[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool got = vgpu_whole_names(names, cases[i].indexes, cases[i].visible, out,
					    sizeof(out));

		CHECK(got == !!cases[i].want && (!got || !strcmp(out, cases[i].want)),
		      "\"%s\" \"%s\": \"%s\"", cases[i].indexes, cases[i].visible, out);
	}
	CHECK(!vgpu_whole_names(names, "0,1,10", "0,1,2", out, 16), "no room: \"%s\"", out);
	CHECK(vgpu_jobdir_of_node(run_dir, "cards", &why) == -ENOENT, "%s", why.text);
	snprintf(path, sizeof(path), "%s/cards", run_dir);
	write_file(path, names, sizeof(names) - 1, 0666);
	CHECK(vgpu_jobdir_of_node(run_dir, "cards", &why) == -1 && strstr(why.text, "only root"),
	      "%s", why.text);
	unlink(path);
}

/* ---- mount.c ---- */

/* Must be able to read what is bound, and unable to change it. */
static void check_bound(const char *target, bool writable)
{
	char text[8] = "";
	int fd = open(target, O_RDONLY);

	CHECK(fd >= 0 && read(fd, text, 5) == 5 && !strcmp(text, "cache"), "%s: \"%s\"", target,
	      text);
	close(fd);
	fd = open(target, O_WRONLY);
	CHECK(writable ? fd >= 0 : fd < 0 && errno == EROFS, "%s: opened %d", target, fd);
	if (fd >= 0)
		close(fd);
}

static void test_mount(void)
{
	struct vgpu_why why = {""};
	char path[256], target[256];
	int fd;

	snprintf(target, sizeof(target), "%s/target", run_dir);
	write_file(target, "outer", 5, 0644);
	CHECK(!vgpu_mount_private(&why), "%s", why.text);
	path_of(path, sizeof(path), "cache");
	fd = open(path, O_RDONLY);
	CHECK(!vgpu_mount_file(fd, target, false, &why), "%s", why.text);
	check_bound(target, false);
	CHECK(!umount(target), "umount");
	CHECK(!vgpu_mount_file(fd, target, true, &why), "%s", why.text);
	check_bound(target, true);
	CHECK(!umount(target), "umount");
	unlink(target);
	CHECK(vgpu_mount_file(fd, target, true, &why) == -1 && strstr(why.text, "systemctl"), "%s",
	      why.text);
	close(fd);
}

/* Any device file will do: 1:3 is that of /dev/null. */
static void test_no_devices(void)
{
	static const char *const names[] = {"card0", "card1", "cards/cap1", "other"};
	struct vgpu_why why = {""};
	char path[256];
	bool opens;
	size_t i;
	int fd;

	snprintf(path, sizeof(path), "%s/cards", run_dir);
	CHECK(!mkdir(path, 0755), "mkdir %s", path);
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", run_dir, names[i]);
		if (mknod(path, S_IFCHR | 0666, makedev(1, 3))) {
			printf("no device files can be made here: test_no_devices is left out\n");
			return;
		}
	}
	CHECK(!vgpu_mount_no_devices(run_dir, "card", &why), "%s", why.text);
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", run_dir, names[i]);
		fd = open(path, O_RDWR);
		opens = !strcmp(names[i], "other");
		CHECK(opens ? fd >= 0 : fd < 0 && errno == EACCES, "%s: opened %d", path, fd);
		if (fd >= 0)
			close(fd);
	}
	CHECK(!vgpu_mount_no_devices(run_dir, "none", &why), "%s", why.text);
}

static void test_state(void)
{
	static const struct {
		const char *text;
		mode_t mode;
		bool no_share, undecided;
	} cases[] = {
		{"no-share\n", 0644, true, false},    {"undecided\n", 0644, false, true},
		{"undecided", 0644, false, true},     {"lost\n", 0644, false, false},
		{"no-share", 0666, false, false},     {"no-shares\n", 0644, false, false},
		{"undecided by", 0644, false, false}, {"", 0644, false, false},
	};
	char path[256];
	size_t i;

	snprintf(path, sizeof(path), "%s/state", run_dir);
	CHECK(!vgpu_job_is(run_dir, 7, VGPU_NO_SHARE) && !vgpu_job_is(run_dir, 7, VGPU_UNDECIDED),
	      "no folder");
	CHECK(!mkdir(path, 0755), "mkdir %s", path);
	snprintf(path, sizeof(path), "%s/state/7", run_dir);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_file(path, cases[i].text, strlen(cases[i].text), cases[i].mode);
		CHECK(vgpu_job_is(run_dir, 7, VGPU_NO_SHARE) == cases[i].no_share &&
			      vgpu_job_is(run_dir, 7, VGPU_UNDECIDED) == cases[i].undecided,
		      "state \"%s\" mode %o", cases[i].text, cases[i].mode);
		CHECK(!vgpu_job_is(run_dir, 8, VGPU_NO_SHARE), "another job");
	}
}

/* ---- seccomp.c ---- */

/* Errors of the calls that could make a user namespace, and of threads. */
static int try_calls(void)
{
	struct vgpu_why why = {""};
	int status;
	pid_t child;

	if (vgpu_seccomp_no_user_namespaces(&why)) {
		fprintf(stderr, "%s\n", why.text);
		return 1;
	}
	if (unshare(CLONE_NEWUSER) == 0 || errno != EPERM)
		return 2;
	if (syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL) >= 0 ||
	    errno != EPERM)
		return 3;
	if (syscall(SYS_clone3, NULL, 0) >= 0 || errno != ENOSYS)
		return 4;
	if (unshare(CLONE_FILES))
		return 5;
	child = fork();
	if (child == 0)
		_exit(0);
	return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 6;
}

static void test_seccomp(void)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0)
		_exit(try_calls());
	waitpid(child, &status, 0);
	CHECK(status == 0, "child: status %d, call %d", status, WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	if (argc != 2 || geteuid() != 0 || !mkdtemp(run_dir)) {
		fprintf(stderr, "usage, as root: plugin_test options.txt\n");
		return 2;
	}
	/* Gone with the mount namespace, whatever happens. */
	if (mount("tmpfs", run_dir, "tmpfs", 0, NULL)) {
		perror("mount a tmpfs");
		return 2;
	}
	test_forms(argv[1]);
	test_printable();
	test_config();
	test_grant();
	test_refused();
	test_cache();
	test_environment();
	test_whole();
	test_mount();
	test_no_devices();
	test_state();
	test_seccomp();
	umount2(run_dir, MNT_DETACH);
	rmdir(run_dir);
	if (failures)
		fprintf(stderr, "%d checks failed\n", failures);
	return failures != 0;
}
