/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "plugin.h"

/* The value of argument when it is named key, else NULL. */
static const char *value_of(const char *argument, const char *key)
{
	size_t n = strlen(key);

	if (strncmp(argument, key, n) || argument[n] != '=')
		return NULL;
	return argument + n + 1;
}

static int read_path(const char **path, const char *key, const char *value, struct vgpu_why *wrong)
{
	if (value[0] != '/')
		return vgpu_because(wrong, "%s=%s: want an absolute path, e.g. %s=%s", key, value,
				    key, *path);
	*path = value;
	return 0;
}

static int read_enforce(enum vgpu_enforce *enforce, const char *value, struct vgpu_why *wrong)
{
	static const char *const names[] = {
		[VGPU_ENFORCE_NAMESPACE] = "namespace",
		[VGPU_ENFORCE_PRELOAD] = "preload",
		[VGPU_ENFORCE_OFF] = "off",
	};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(value, names[i])) {
			*enforce = (enum vgpu_enforce)i;
			return 0;
		}
	}
	return vgpu_because(wrong,
			    "enforce=%s: want namespace, preload or off, e.g. enforce=namespace",
			    value);
}

static int read_argument(struct vgpu_config *config, const char *argument)
{
	struct vgpu_why *wrong = &config->wrong;
	const char *value;

	if ((value = value_of(argument, "run_dir")))
		return read_path(&config->run_dir, "run_dir", value, wrong);
	if ((value = value_of(argument, "library")))
		return read_path(&config->library, "library", value, wrong);
	if ((value = value_of(argument, "prolog")))
		return read_path(&config->prolog, "prolog", value, wrong);
	if ((value = value_of(argument, "enforce")))
		return read_enforce(&config->enforce, value, wrong);
	if ((value = value_of(argument, "seccomp"))) {
		if (strcmp(value, "0") && strcmp(value, "1"))
			return vgpu_because(wrong, "seccomp=%s: want 0 or 1, e.g. seccomp=1",
					    value);
		config->seccomp = value[0] == '1';
		return 0;
	}
	return vgpu_because(wrong,
			    "%s: unknown argument: want run_dir=, library=, prolog=, enforce= or "
			    "seccomp=",
			    argument);
}

/* A bad argument is kept, not raised: see the rule in plugin.h. The values
 * point into argv, which slurm keeps for the life of the plugin. */
void vgpu_config_read(struct vgpu_config *config, int argc, char **argv)
{
	int i;

	*config = (struct vgpu_config){
		.run_dir = "/run/vgpu",
		.library = "/usr/lib/vgpu/libvgpu.so",
		.prolog = "/usr/sbin/vgpu-prolog",
		.enforce = VGPU_ENFORCE_NAMESPACE,
	};
	for (i = 0; i < argc && !config->wrong.text[0]; i++)
		read_argument(config, argv[i]);
}
