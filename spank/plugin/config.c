/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "plugin.h"

static const char *const keys[] = {"run_dir", "library", "prolog", "enforce", "seccomp"};
static const char *const modes[] = {
	[VGPU_ENFORCE_NAMESPACE] = "namespace",
	[VGPU_ENFORCE_PRELOAD] = "preload",
	[VGPU_ENFORCE_OFF] = "off",
};

/* The place in list of the first n bytes of text, or that of its end. */
static size_t place(const char *const *list, size_t size, const char *text, size_t n)
{
	size_t i = 0;

	while (i < size && (strlen(list[i]) != n || strncmp(list[i], text, n)))
		i++;
	return i;
}
#define PLACE(list, text, n) place(list, sizeof(list) / sizeof(list[0]), text, n)

static int read_argument(struct vgpu_config *config, const char *argument)
{
	const char **const paths[] = {&config->run_dir, &config->library, &config->prolog};
	struct vgpu_why *wrong = &config->wrong;
	size_t n = strcspn(argument, "="), key = PLACE(keys, argument, n), mode;
	const char *value = argument + n + 1;

	if (!argument[n] || key == sizeof(keys) / sizeof(keys[0]))
		return vgpu_because(wrong,
				    "%s: unknown argument: want run_dir=, library=, prolog=, "
				    "enforce= or seccomp=",
				    argument);
	if (key < 3) {
		if (value[0] != '/')
			return vgpu_because(wrong, "%s=%s: want an absolute path, e.g. %s=%s",
					    keys[key], value, keys[key], *paths[key]);
		*paths[key] = value;
	} else if (key == 3) {
		mode = PLACE(modes, value, strlen(value));
		if (mode == sizeof(modes) / sizeof(modes[0]))
			return vgpu_because(wrong,
					    "enforce=%s: want namespace, preload or off, e.g. "
					    "enforce=namespace",
					    value);
		config->enforce = (enum vgpu_enforce)mode;
	} else {
		if (strcmp(value, "0") && strcmp(value, "1"))
			return vgpu_because(wrong, "seccomp=%s: want 0 or 1, e.g. seccomp=1",
					    value);
		config->seccomp = value[0] == '1';
	}
	return 0;
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
